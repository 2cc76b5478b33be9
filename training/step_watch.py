"""What happens between steps: where each rank stands is said, the probe is taken, and a run that is asked to stop leaves."""

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from training.distributed import describe
from training.events import Placed
from training.failure import StopRequested
from training.probe import probe
from training.probe_rules import wants_probe
from training.report import Report
from training.stopping import StopSignal

if TYPE_CHECKING:
    from training.reporting import Reporting


class StepWatch(TrainerCallback):  # type: ignore[misc]
    """Reports where each rank stands when training begins, and looks between steps whether to stop."""

    def __init__(self, trainer: "Reporting", report: Report, stop: StopSignal) -> None:
        self._trainer, self._report, self._stop = trainer, report, stop

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._stop.training_begins()
        placement = describe(self._trainer.model_wrapped)
        shards = {
            name: placement.pop(name) for name in ("parameter_shard", "parameters", "optimizer_shard", "optimized")
        }
        self._report.each(Placed(rank=self._report.rank, **shards))
        self._trainer.begun(placement, state)
        if state.global_step == 0 and wants_probe(self._trainer.watch.config, args.device.type):
            with self._report.during("probing"):
                probe(self._trainer, self._trainer.watch.moments)
        self._report.enter("training")
        self._report.memory(state.global_step, always=True)

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._trainer.epoch_begins()

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._trainer.step_begins()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self._stop.agreed():
            control.should_evaluate = False
            control.should_save = control.should_training_stop = True

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self._stop.agreed():
            raise StopRequested
