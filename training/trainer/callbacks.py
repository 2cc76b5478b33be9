"""Callbacks that need no trainer: the best checkpoint and early stopping; AdaLoRA's ranks."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from training.config.run_config import RunConfig
from training.errors import UserError
from training.reports.report import Report


class Evaluation(NamedTuple):
    """The step and results of an evaluation; only token losses have a perplexity."""

    step: int
    loss: float | None = None
    perplexity: float | None = None

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Self:
        """Reads an entry of the trainer's log."""
        return cls(int(entry["step"]), entry.get("eval_loss"), entry.get("eval_perplexity"))

    @property
    def rank(self) -> float:
        """The loss, with NaN as infinity; lower is better."""
        return math.inf if self.loss is None or math.isnan(self.loss) else self.loss


def evaluations(state: TrainerState) -> list[Evaluation]:
    """Returns all evaluations of the run, including those of earlier attempts."""
    return [Evaluation.of(entry) for entry in state.log_history if "eval_loss" in entry]


def best(results: Iterable[Evaluation]) -> Evaluation | None:
    """Returns the first evaluation with the lowest loss."""
    return min(results, key=lambda evaluation: evaluation.rank, default=None)


def evaluations_without_gain(results: Iterable[Evaluation], threshold: float) -> int:
    """Counts the last evaluations in a row that did not lower the lowest loss by more than `threshold`."""
    lowest, count = math.inf, 0
    for loss in (evaluation.rank for evaluation in results):
        count = 0 if loss < lowest - threshold else count + 1
        lowest = min(lowest, loss)
    return count


def stops_early(config: RunConfig, state: TrainerState) -> bool:
    """True if early stopping ends the run now, before its last step."""
    count = evaluations_without_gain(evaluations(state), config.early_stopping_threshold)
    patience = config.early_stopping_patience
    return patience is not None and count >= patience and state.global_step < state.max_steps


class BestCheckpointCallback(TrainerCallback):  # type: ignore[misc]
    """Saves a checkpoint at each evaluation that is the best so far, and stops early when the loss no longer improves.

    Both decisions depend only on the logged evaluations, which checkpoints contain, so a resumed run decides the same.
    """

    def __init__(self, config: RunConfig, report: Report) -> None:
        self._config, self._report = config, report

    def on_evaluate(self, _args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        results = evaluations(state)
        lowest = best(results)
        if lowest is None:
            return
        if self._config.load_best_at_end and lowest.step == state.global_step:
            control.should_save = True
        if stops_early(self._config, state):
            control.should_training_stop = True
            count = evaluations_without_gain(results, self._config.early_stopping_threshold)
            message = f"Stopped early at step {state.global_step}: {count} evaluations in a row did not lower the loss"
            self._report.note(f"{message} ({lowest.loss:.4f} at step {lowest.step}).")


def best_to_load(config: RunConfig, state: TrainerState) -> Evaluation | None:
    """Returns the evaluation whose checkpoint must be kept since it may become the result, or None."""
    return best(evaluations(state)) if config.load_best_at_end else None


class AdaLoraCallback(TrainerCallback):  # type: ignore[misc]
    """Sets AdaLoRA's total steps, and reallocates its ranks after every optimizer step."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **named: Any
    ) -> None:
        schedule = named["model"].peft_config["default"]
        if schedule.tinit >= state.max_steps - schedule.tfinal:
            options = f"tinit={schedule.tinit}, tfinal={schedule.tfinal}"
            fix = f"Keep tinit + tfinal below the run's {state.max_steps} steps."
            raise UserError("method_options", options, "leave AdaLoRA no step to reallocate its ranks.", fix)
        schedule.total_step = state.max_steps

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **named: Any
    ) -> None:
        named["model"].base_model.update_and_allocate(state.global_step + 1)
