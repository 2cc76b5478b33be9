"""Callback: reports placement, runs the probe, stops when requested."""

from typing import Any, Protocol

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from training.errors import StopRequested
from training.ranks.distributed import describe, keep_gradient_norm
from training.ranks.hang_watch import HangWatch, watch
from training.ranks.pace import Pace, PaceComparison
from training.ranks.stopping import StopSignal
from training.reports.report import Report
from training.rules.memory import wants_probe
from training.run_folder.events import Placed
from training.trainer.divergence import Divergence
from training.trainer.probe import probe
from training.trainer.throughput import Throughput


class CallbackTrainer(Protocol):
    """The members of a trainer that the callback uses."""

    model_wrapped: torch.nn.Module
    throughput: Throughput
    pace: Pace
    divergence: Divergence
    eval_dataset: Any

    @property
    def context(self) -> Any: ...

    @property
    def paused(self) -> bool: ...

    def on_model_placed(self, placement: dict[str, Any], state: TrainerState) -> None: ...

    def on_epoch_begin(self) -> None: ...

    def on_step_begin(self) -> None: ...


class StepCallback(TrainerCallback):  # type: ignore[misc]
    """Reports each rank's placement and runs the probe when training begins; checks after each step whether to stop."""

    def __init__(self, trainer: CallbackTrainer, report: Report, stop: StopSignal) -> None:
        self._trainer, self._report, self._stop = trainer, report, stop
        self._comparison: PaceComparison | None = None
        self._watch: HangWatch | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._stop.training_begins()
        self._trainer.throughput.before = state.num_input_tokens_seen
        keep_gradient_norm(self._trainer.model_wrapped)
        placement = describe(self._trainer.model_wrapped)
        shards = {
            name: placement.pop(name) for name in ("parameter_shard", "parameters", "optimizer_shard", "optimized")
        }
        self._report.for_rank(Placed(rank=self._report.rank, **shards))
        self._trainer.on_model_placed(placement, state)
        if state.global_step == 0 and wants_probe(self._trainer.context.config, args.device.type):
            with self._report.during("probing"):
                probe(self._trainer, self._trainer.context.tracker)
        self._report.enter("training")
        self._report.memory(state.global_step, always=True)
        self._compare_ranks(state.global_step)

    def _compare_ranks(self, step: int) -> None:
        """From now on slow and hung ranks are named. A collective if there are several ranks."""
        self._trainer.pace.begin(step, active=self._stop.group is not None)
        if self._stop.group is not None:
            self._comparison = PaceComparison(self._trainer.pace, self._report, self._stop.group)
            self._watch = watch(self._trainer.pace, self._report, self._comparison.nodes)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self._watch:
            self._watch.end()

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._trainer.on_epoch_begin()

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._trainer.on_step_begin()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self._comparison:
            self._comparison.after_step(state.global_step)
        self._trainer.divergence.end_step()
        self._stop.diverged |= self._trainer.divergence.seen
        if self._stop.agreed():
            control.should_evaluate = False
            control.should_save = control.should_training_stop = True
        elif self._stop.diverged:
            control.should_evaluate = control.should_save = False
            control.should_log = control.should_training_stop = True
        elif self._trainer.paused:
            control.should_log = control.should_save = control.should_training_stop = True
            control.should_evaluate = self._trainer.eval_dataset is not None

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self._stop.agreed():
            raise StopRequested
