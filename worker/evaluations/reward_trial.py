"""Tries rewards on the rows of a data set, by their expected answers or by given ones."""

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from training.config.data_sets import sources
from training.config.fields import ConfigError
from training.config.run_config import RunConfig
from training.errors import Problem
from training.model_info.folder import adapter_base
from training.rewards.built_in import MODEL
from training.rewards.reward_batch import Trouble, together
from training.rewards.reward_process import RewardProcess
from training.rewards.rewards import CODE_FILE, Reward, parse_rewards, rewards_of, total
from training.rewards.sample import Sample
from worker import allowed_rewards
from worker.allowed_paths import AllowedPaths
from worker.datasets import checking, datasets
from worker.machine import model_files, programs
from worker.machine.programs import ProgramError
from worker.machine.turns import turns
from worker.runs import reward_models
from worker.runs.settle import find_data, settle, settled_rewards
from worker.sent_code import OWN, refuse_code

MOST_ROWS = 1000
_BATCH = 256

Values = dict[str, list[float | None]]
Troubles = dict[str, Trouble]


@dataclass(frozen=True)
class TriedRewards:
    """Rewards of samples: their values and totals by sample, and what went wrong with each."""

    rewards: tuple[Reward, ...]
    samples: list[Sample]
    values: Values
    totals: list[float | None]
    troubles: Troubles
    seconds: float


def try_run(config: RunConfig, rows: int, allowed: AllowedPaths) -> TriedRewards:
    """Scores the first `rows` rows of a run's training data (of several data sets, of the first one) by their expected answers.

    Raises:
        UserError: as `try_rewards`; a file is not there or not allowed, or a run cannot use a reward.
    """
    readable = settle(config, allowed, files=["reward_code"]).readable
    own = {CODE_FILE: readable.reward_code} if readable.reward_code else {}
    source = sources(readable.data)[0]
    columns = source.columns or readable.columns
    return try_rewards(
        rewards_of(readable), own, source.path, columns=columns, rows=rows, answers=None, allowed=allowed
    )


def try_rewards(
    rewards: str | tuple[Reward, ...],
    own: Mapping[str, str],
    data: str,
    *,
    columns: str | None,
    rows: int,
    answers: Mapping[int, str] | None,
    allowed: AllowedPaths,
) -> TriedRewards:
    """Scores the first `rows` rows by their expected answers; or the rows for which `answers` (by number, from 0) has one.

    Raises:
        UserError: a reward is wrong or may not be used, or the rows cannot be read.
    """
    refuse_code({OWN: own}, allowed)
    parsed = parse_rewards(settled_rewards(rewards, allowed)) if isinstance(rewards, str) else rewards
    if missing := next((reward for reward in parsed if reward.own and reward.own[0] not in own), None):
        raise ConfigError([Problem("rewards", missing.kind, "has no code.", "Send the code of its file in `own`.")])
    models = [reward for reward in parsed if reward.kind == MODEL]
    problems = [*allowed_rewards.problems(parsed, allowed, "rewards"), *allowed_rewards.file_problems(own, parsed)]
    problems += reward_models.problems(map(reward_models.of, models), allowed, "rewards") if not problems else []
    if problems:
        raise ConfigError(problems)
    with turns.taken():
        return _tried(parsed, models, own, _source(data, columns, allowed), rows, answers)


def _tried(
    parsed: tuple[Reward, ...],
    models: Sequence[Reward],
    own: Mapping[str, str],
    source: dict[str, Any],
    rows: int,
    answers: Mapping[int, str] | None,
) -> TriedRewards:
    samples = _samples(source, rows, answers)
    values: Values = {reward.name: [] for reward in parsed if reward.kind != MODEL}
    troubles: Troubles = {}
    seconds = 0.0
    key = allowed_rewards.judge_key
    with tempfile.TemporaryDirectory() as folder, RewardProcess(parsed, own, Path(folder), judge_key=key) as process:
        for start in range(0, len(samples), _BATCH):
            scores = process.score(samples[start : start + _BATCH])
            troubles, seconds = together(troubles, scores.troubles), seconds + scores.seconds
            for name, part in scores.values.items():
                values[name] += part
    if models:
        began = time.monotonic()
        by_models, failed = _by_models(models, source, samples)
        values, troubles, seconds = values | by_models, troubles | failed, seconds + time.monotonic() - began
    return TriedRewards(parsed, samples, values, total(parsed, values), troubles, seconds)


def _by_models(
    models: Sequence[Reward], source: Mapping[str, Any], samples: Sequence[Sample]
) -> tuple[Values, Troubles]:
    """The scores of reward models, which a program computes on the CPUs of this machine, and what went wrong with them."""
    answers = {str(sample.number): sample.answer for sample in samples}
    asked = {
        **source,
        "answers": answers,
        "rewards": [reward_models.with_folder(reward).document() for reward in models],
    }
    limits = programs.REWARD_SCORES.limits(Path(source["path"]), *_files_of_models(asked["rewards"]))
    try:
        found = programs.run_for_json(programs.REWARD_SCORES, [], limits, text=json.dumps(asked))
    except ProgramError as error:
        sentence = f"cannot be computed here ({error}); `lathe reward --model` scores samples where runs train"
        trouble = Trouble(len(samples), sentence, "reward model")
        return {reward.name: [None] * len(samples) for reward in models}, {reward.name: trouble for reward in models}
    if "problem" in found:
        raise ConfigError([Problem(**found["problem"])])
    return found["scores"], {name: Trouble(*values) for name, values in found["troubles"].items()}


def _files_of_models(rewards: Sequence[Mapping[str, Any]]) -> list[Path]:
    """What the program reads of reward models: their folders, and those of the base models of adapters."""
    names = [reward["model"] for reward in rewards]
    return model_files.files_of([*names, *(adapter_base(Path(name)) for name in names)])


def _source(data: str, columns: str | None, allowed: AllowedPaths) -> dict[str, Any]:
    """The file of a data set: its path, its name for users and its column mapping.

    Raises:
        ConfigError: it is not there, or not allowed.
    """
    found = find_data("data", data, allowed)
    if isinstance(found, Problem):
        raise ConfigError([found])
    path = found if isinstance(found, Path) else datasets.path_of(found)
    mapping = columns or (None if isinstance(found, Path) else found.columns_map)
    name = path.name if isinstance(found, Path) else found.name
    return {"path": str(path.absolute()), "name": name, "columns": mapping}


def _samples(source: dict[str, Any], rows: int, answers: Mapping[int, str] | None) -> list[Sample]:
    if answers is not None and len(answers) > MOST_ROWS:
        fix = f"Send at most {MOST_ROWS:,}; an evaluation scores any number of rows."
        raise ConfigError([Problem("answers", None, f"are {len(answers):,}.", fix)])
    read = _read(source | {"first": rows, "rows": None if answers is None else list(answers)})
    if not read:
        message = "has no rows with a prompt and an answer" + (" among those." if answers is not None else ".")
        raise ConfigError([Problem("data", source["name"], message, "Choose other rows, or give the columns.")])
    if answers is None and not any(row["expected"] for row in read):
        fix = "Give answers (lathe reward --answers FILE), or have a model draw samples (lathe reward --model MODEL)."
        raise ConfigError([Problem("data", source["name"], "has prompts without expected answers to score.", fix)])
    samples = (Sample(row["prompt"], row["expected"], row["expected"], row["row"], row["number"]) for row in read)
    return [replace(one, answer=answers[one.number or 0]) if answers is not None else one for one in samples]


def _read(asked: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    path = Path(asked["path"])
    try:
        found = programs.run_for_json(programs.SAMPLE_ROWS, [], checking.limits_for(path), text=json.dumps(asked))
    except ProgramError as error:
        fix = "Check the file: lathe dataset check FILE"
        raise ConfigError([Problem("data", asked["name"], f"could not be read: {error}.", fix)]) from None
    if "problem" in found:
        raise ConfigError([Problem(**found["problem"])])
    return list(found["samples"])
