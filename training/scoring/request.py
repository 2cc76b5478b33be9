"""What an evaluation does, as its folder and its database row hold it."""

import re
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from training.config import json_text
from training.config.name_values import METRICS
from training.errors import UserError
from training.rewards.built_in import JUDGE, MODEL, REWARDS
from training.rewards.judge import Judge
from training.rewards.rewards import Reward, reward_of

BUILT_IN = METRICS
ACCURACY = "accuracy"
RESULT, BASE = "result", "base"
DEFAULT_METRICS = ("exact_match", "f1", "rougeL")

REQUEST_FILE = "request.json"
RECORDS_FILE = "answers.jsonl"
COLUMNS = "columns"
"""Key of a record until it is scored: the columns of its row."""
PLAIN = "plain"
"""The same: the prompt without a chat template, if it is another text."""
BEFORE = "before"
"""The answer of the model before training to a case of a suite."""
PROGRESS_FILE = "progress.jsonl"
OUTPUT_FILE = "output.log"
SUMMARY_FILE = "summary.json"
CARD = "card"
"""Key of the score card in this file and in a summary."""
EVALUATIONS_FOLDER = "evaluations"
"""In the run's folder, with a folder for each evaluation."""

_CHECKPOINT = re.compile(r"checkpoint-\d+")
_FIXED = (*BUILT_IN, ACCURACY, JUDGE)
"""Names that always stand for the same metric."""


class Decoding(StrEnum):
    """How answers are generated: the most probable token each time, or as the model's own generation_config.json says."""

    GREEDY = "greedy"
    MODEL = "model"


BASELINE = "baseline"
"""The expectation that the answer is that of the model before training."""
MOST_SHOTS = 32
TRAINING_ROWS = "training_rows"
"""Key of the number of rows that the run trained on, in the summary of an evaluation of some of them."""


class Prompt(BaseModel):
    """A prompt of a prompt set: a chat message with a system message, or plain text (`mode` is chat or text).

    A case of a suite has an expectation: `expect` is BASELINE, or the name of a metric whose score of the answer has to be at least
    `threshold`; `expected` is the text that the metric compares with.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    user: str
    system: str = ""
    mode: str = "chat"
    expect: str = ""
    expected: str = ""
    threshold: float = 1.0


class EvaluationRequest(BaseModel):
    """What an evaluation does.

    `source` is result, base (the model before training) or checkpoint-N. `path`, `columns` and `name` are those of the data set;
    `rows` is the number of its first rows that are answered, None for all. `decoding` says how. `metrics` are built-in ones,
    rewards (by name, as FILE.py:FUNCTION whose code `own` has by file name, or as a JSON object with options, which go into
    `options`), and judge, which `judge` describes.
    With `lm_eval` its tasks are evaluated instead; with `prompts` those of the prompt set `prompt_set` are answered, without
    scores. `compares`: the rows are searched for in the training rows. `shots`: so many rows of the `training` sets (path, columns,
    name) stand before each prompt. With `of_training` the rows are drawn from those of these sets that the run trained on.
    With `exclude_leaked_rows` the rows of the data set that training rows contain (training/scoring/overlap.py) are not answered;
    their numbers are `leaked`.
    `suite` is the id of the suite that it belongs to, whose limits are `most_kl`, `most_loss` and `most_gap`; `text` is the plain
    text whose loss is measured before and after training, by default Lathe's own.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str = RESULT
    path: str = ""
    name: str = ""
    sha256: str = ""
    columns: str | None = None
    compares: bool = True
    rows: int | None = Field(None, ge=1)
    metrics: tuple[str, ...] = Field(DEFAULT_METRICS, max_length=20)
    options: dict[str, dict[str, Any]] = Field(default_factory=dict, max_length=20)
    max_new_tokens: int | None = Field(None, ge=1, le=32_768)
    decoding: Decoding = Decoding.GREEDY
    own: dict[str, str] = Field(default_factory=dict, max_length=10)
    judge: Judge | None = None
    lm_eval: tuple[str, ...] = ()
    prompt_set: str = ""
    prompts: tuple[Prompt, ...] = ()
    shots: int = Field(0, ge=0, le=MOST_SHOTS)
    of_training: bool = False
    exclude_leaked_rows: bool = False
    leaked: tuple[int, ...] = ()
    training: tuple[tuple[str, str | None, str], ...] = ()
    suite: str = ""
    text: str = Field("", max_length=100_000)
    most_kl: float | None = Field(None, gt=0, allow_inf_nan=False)
    most_loss: float | None = Field(None, gt=0, allow_inf_nan=False)
    most_gap: float | None = Field(None, gt=0, allow_inf_nan=False)

    @field_validator("source")
    @classmethod
    def _known_source(cls, value: str) -> str:
        if value not in (RESULT, BASE) and not _CHECKPOINT.fullmatch(value):
            raise ValueError("is not result, base or checkpoint-N")
        return value

    @model_validator(mode="before")
    @classmethod
    def _named_metrics(cls, values: Any) -> Any:
        """Metrics that are JSON objects become a name, with the object in `options`; one named judge gives `judge`."""
        if not isinstance(values, dict) or not isinstance(values.get("metrics"), (list, tuple)):
            return values
        given = [metric for metric in values["metrics"] if isinstance(metric, str) and metric.lstrip().startswith("{")]
        options = {text: _reward(text) for text in given}
        names = [options[metric].name if metric in options else metric for metric in values["metrics"]]
        for reward in options.values():
            if names.count(reward.name) > 1 or (reward.source and reward.name in _FIXED):
                form = '{"name": "city", "reward": "regex", ...}'
                raise ValueError(f"metric {reward.name} is the name of two metrics; give one a name of its own: {form}")
        documents = {reward.name: reward.document() for reward in options.values() if reward.name != JUDGE}
        judges = {reward.name: reward.options for reward in options.values() if reward.name == JUDGE}
        return values | judges | {"metrics": names, "options": dict(values.get("options") or {}) | documents}

    @model_validator(mode="after")
    def _known_metrics(self) -> Self:
        for reward in self.rewards:
            if reward.own and reward.own[0] not in self.own:
                raise ValueError(f"metric {reward.kind}: the code of {reward.own[0]} was not sent")
        if JUDGE in self.metrics and self.judge is None:
            raise ValueError("metric judge needs the judge's URL and model")
        return self

    @property
    def has_cases(self) -> bool:
        """True if the prompts carry expectations."""
        return any(prompt.expect for prompt in self.prompts)

    @property
    def rewards(self) -> tuple[Reward, ...]:
        """The metrics that the reward process (training/rewards/reward_process.py) or a reward model computes."""
        others = [metric for metric in self.metrics if metric not in (*self.built_in, JUDGE)]
        return tuple(_reward(self.options.get(metric, {"reward": metric})) for metric in others)

    @property
    def comparing(self) -> list[str]:
        """The metrics that compare the answers with expected ones."""
        judged = [JUDGE] if JUDGE in self.metrics and self.judge and self.judge.compares else []
        return [*self.built_in, *(reward.name for reward in self.rewards if reward.compares), *judged]

    @property
    def is_scored_later(self) -> bool:
        """True if some of its metrics are computed by the worker from the answers."""
        return bool(self.rewards) or JUDGE in self.metrics

    @property
    def reward_models(self) -> tuple[Reward, ...]:
        """Those that a reward model computes, in the program that answers the rows."""
        return tuple(reward for reward in self.rewards if reward.kind == MODEL)

    @property
    def built_in(self) -> list[str]:
        """The metrics that the training packages compute."""
        return [metric for metric in self.metrics if metric in (*BUILT_IN, ACCURACY) and metric not in self.options]


def _reward(given: str | dict[str, Any]) -> Reward:
    """Raises ValueError: the JSON text or object is not a reward."""
    try:
        return reward_of(json_text.load(given) if isinstance(given, str) else given)
    except UserError as error:
        name = error.problem.value
        if error.problem.message.startswith("is unknown"):
            known = ", ".join(dict.fromkeys((*BUILT_IN, *REWARDS, ACCURACY, JUDGE, MODEL)))
            raise ValueError(f"metric {name!r} is unknown; metrics are {known}, and FILE.py:FUNCTION") from None
        raise ValueError(f"metric: {error.problem}") from None


def evaluation_dir(run_dir: Path, evaluation_id: str) -> Path:
    """The folder of an evaluation."""
    return run_dir / EVALUATIONS_FOLDER / evaluation_id
