"""The score card of an evaluation: what its scores depend on besides the rows' own difficulty. Scores with equal cards compare."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from training.rewards.built_in import JUDGE

GREEDY, OWN, CLASSES = "greedy", "generation_config.json", "most probable class"
TRAINED_TEMPLATE = "trained_template_sha256"
"""In `prompt` where the weights are saved with another chat template than they were trained with."""
METRICS_FIELD = "metrics"
_NOT_COMPARED = ("data", "rows", "weights")
"""Names, the rows (those that both answered are compared, and counted), and the weights, which are what a comparison is about."""
_OF_METRICS = (METRICS_FIELD, JUDGE)


class ScoreCard(BaseModel):
    """What the scores of an evaluation depend on. Fields that are empty or null were not recorded.

    `data` is the name of the data set, `sha256` that of its bytes, `columns` its column mapping, `rows` how many rows were
    answered. `decoding` and `prompt` say how answers are generated and prompts written (the SHA-256 of the chat template, its
    arguments). `metrics` has a fingerprint of each metric: of its options and its code. `judge` has the judge's address, model,
    scale and the SHA-256 of its prompt. `engine` is the program that answered, with its version; `dtype` that of the computation.
    `weights` are the base model and what was trained on it, with the SHA-256 of its files.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    data: str = ""
    sha256: str = ""
    columns: str | None = None
    rows: int | None = None
    decoding: dict[str, Any] = {}
    prompt: dict[str, Any] = {}
    metrics: dict[str, str] = {}
    judge: dict[str, Any] | None = None
    engine: str = ""
    dtype: str = ""
    weights: dict[str, Any] = {}

    def document(self) -> dict[str, Any]:
        """The values for JSON."""
        return self.model_dump(mode="json")


class Difference(NamedTuple):
    """A field that two cards differ in, such as decoding.max_new_tokens; null: not there, or not recorded."""

    field: str
    first: Any
    second: Any


def differences(first: ScoreCard, second: ScoreCard) -> list[Difference]:
    """What makes all scores of two cards incomparable."""
    return [one for one in _all(first, second) if one.field.partition(".")[0] not in _OF_METRICS]


def of_metric(first: ScoreCard, second: ScoreCard, metric: str) -> list[Difference]:
    """What makes the scores of one metric incomparable: its fingerprint, and of a judge the judge."""
    own = f"{METRICS_FIELD}.{metric}"
    judge = f"{JUDGE}." if metric == JUDGE else own
    return [one for one in _all(first, second) if one.field == own or one.field.startswith(judge)]


def _all(first: ScoreCard, second: ScoreCard) -> Iterator[Difference]:
    one, other = _flat(first), _flat(second)
    for name in dict.fromkeys((*one, *other)):
        if one.get(name) != other.get(name):
            yield Difference(name, one.get(name), other.get(name))


def _flat(card: ScoreCard) -> dict[str, Any]:
    """The compared values, each by its place; what is empty is left out."""
    found: dict[str, Any] = {}
    for name, value in card.document().items():
        if name not in _NOT_COMPARED:
            found |= (
                {f"{name}.{key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
            )
    return {name: value for name, value in found.items() if value not in (None, "", {})}
