"""The evaluation with the lowest loss: keeping its checkpoint, and ending a run that no longer gets better."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from training.config import RunConfig
from training.events import Note
from training.report import Report


class Evaluation(NamedTuple):
    """What an evaluation found; perplexity where the loss is one of tokens."""

    step: int
    loss: float | None = None
    perplexity: float | None = None

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Self:
        """From what a trainer logs."""
        return cls(int(entry["step"]), entry.get("eval_loss"), entry.get("eval_perplexity"))

    @property
    def rank(self) -> float:
        """Lower is better; what is no number is worst."""
        return math.inf if self.loss is None or math.isnan(self.loss) else self.loss


def evaluations(state: TrainerState) -> list[Evaluation]:
    """All evaluations of the run, also those before it was resumed."""
    return [Evaluation.of(entry) for entry in state.log_history if "eval_loss" in entry]


def best(found: Iterable[Evaluation]) -> Evaluation | None:
    """The evaluation with the lowest loss, the first where several have it."""
    return min(found, key=lambda evaluation: evaluation.rank, default=None)


def without_gain(found: Iterable[Evaluation], threshold: float) -> int:
    """How many evaluations in a row, up to the last, did not lower the lowest loss by more than `threshold`."""
    lowest, count = math.inf, 0
    for loss in (evaluation.rank for evaluation in found):
        count = 0 if loss < lowest - threshold else count + 1
        lowest = min(lowest, loss)
    return count


def out_of_patience(config: RunConfig, state: TrainerState) -> bool:
    """Whether early stopping ends a run with these evaluations, before its last step."""
    waited = without_gain(evaluations(state), config.early_stopping_threshold)
    patience = config.early_stopping_patience
    return patience is not None and waited >= patience and state.global_step < state.max_steps


class BestWatch(TrainerCallback):  # type: ignore[misc]
    """Saves a checkpoint at each evaluation that is the best so far, and ends a run that no longer gets better.

    Both are read off the logged evaluations, which a checkpoint holds, so that a resumed run decides as an unbroken one.
    """

    def __init__(self, config: RunConfig, report: Report) -> None:
        self._config, self._report = config, report

    def on_evaluate(self, _args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        found = evaluations(state)
        lowest = best(found)
        if lowest is None:
            return
        if self._config.load_best_at_end and lowest.step == state.global_step:
            control.should_save = True
        if out_of_patience(self._config, state):
            control.should_training_stop = True
            waited = without_gain(found, self._config.early_stopping_threshold)
            told = f"Stopped early at step {state.global_step}: {waited} evaluations in a row did not lower the loss"
            self._report.once(Note(message=f"{told} ({lowest.loss:.4f} at step {lowest.step})."))


def kept_step(config: RunConfig, state: TrainerState) -> int | None:
    """The step whose checkpoint must not be deleted since the result may be made of it."""
    lowest = best(evaluations(state)) if config.load_best_at_end else None
    return lowest.step if lowest else None
