"""What happens when training begins, placement and probe, and after each step: whether to stop."""

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from training.config.choices import Method
from training.errors import StopRequested
from training.ranks.distributed import describe, keep_gradient_norm
from training.ranks.pace import HangWatch, PaceComparison, watch
from training.rules.memory import wants_probe
from training.run_folder.events import Placed
from training.trainer.callbacks import AdaLoraCallback, BestCheckpointCallback
from training.trainer.probe import probe
from training.trainer.reporting_trainer import ReportingTrainer


def add_callbacks(trainer: ReportingTrainer) -> None:
    """Adds the callbacks of a run, in their order: the model is placed before others see it."""
    context = trainer.context
    trainer.add_callback(StepCallback(trainer))
    trainer.add_callback(BestCheckpointCallback(context.config, context.report))
    trainer.add_callback(context.trackers)
    if context.config.method is Method.ADALORA:
        trainer.add_callback(AdaLoraCallback())


class StepCallback(TrainerCallback):  # type: ignore[misc]
    """Reports each rank's placement and runs the probe when training begins; checks after each step whether to stop."""

    def __init__(self, trainer: ReportingTrainer) -> None:
        self._trainer, self._report, self._stop = trainer, trainer.context.report, trainer.context.stop
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
        if state.global_step == 0:
            self._trainer.objective.before_first_step()
        self._report.enter("training")
        self._report.memory(state.global_step, always=True)
        self._trainer.pace.begin(state.global_step, active=self._stop.group is not None)
        if self._stop.group is not None:  # from now on slow and hung ranks are named
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
