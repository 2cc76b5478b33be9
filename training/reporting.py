"""What every trainer does, whatever it optimises: reports, seals checkpoints, keeps Lathe's order of rows, leaves when asked."""

import math
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import TrainerState

from training import manifest
from training.best import BestWatch, Evaluation, best, evaluations, kept_step, out_of_patience
from training.checkpointing import keeping, spare_every_second_layer
from training.config import Checkpointing, Interval, RunConfig
from training.data import EpochSampler, RankBatches
from training.distributed import main_rank_works
from training.events import CheckpointSaved, Metrics, Note, Planned
from training.failure import StopRequested
from training.global_batch import GlobalBatchTrainer
from training.memory_limit import counter
from training.method_steps import callbacks, loraplus
from training.moments import Moments
from training.optimizers import optimizer_factory
from training.order import Shuffled, steps_per_epoch
from training.report import Report, used_bytes
from training.schedules import scheduler_arguments
from training.step_watch import StepWatch
from training.stopping import StopSignal
from training.streaming import Stream
from training.throughput import Throughput

# What trainers log, and the names it is kept under, also of evaluations (eval_...).
_MEASURES = {
    "loss": "loss",
    "accuracy": "accuracy",
    "margin": "margin",
    "rewards/accuracies": "accuracy",
    "rewards/margins": "margin",
    "rewards/chosen": "reward_chosen",
    "rewards/rejected": "reward_rejected",
    "kl": "kl",
}
_LOGGED = (
    {"learning_rate": "learning_rate", "grad_norm": "grad_norm", "eval_perplexity": "eval_perplexity"}
    | _MEASURES
    | {f"eval_{name}": f"eval_{kept}" for name, kept in _MEASURES.items()}
)


@dataclass(frozen=True)
class Watch:
    """Whom a trainer reports to, and what is known of the run before it begins."""

    run_dir: Path
    report: Report
    stop: StopSignal
    config: RunConfig
    plan: dict[str, Any]
    moments: Moments


class Reporting(GlobalBatchTrainer):
    """A Trainer whose numbers go to the run's report. Stands before the trainer of a task in a class's bases."""

    optimizer: torch.optim.Optimizer | None
    _resumed_from: str | None = None  # until the first step after it

    def __init__(self, *, watch: Watch, train_dataset: Any, eval_dataset: Any, **arguments: Any) -> None:
        watch.report.moments = watch.moments
        self.sequence_shares = watch.config.sequence_parallel_size
        super().__init__(**arguments, **self.shown_rows(train_dataset, eval_dataset))
        self.place_data(train_dataset, eval_dataset)
        self._watch = watch
        self.throughput = Throughput(self.args.device)
        self.strategy: dict[str, Any] = {}
        self.memory_before = 0
        self.last_loss: float | None = None
        self.last_evaluation = Evaluation(step=-1)
        self.add_callback(StepWatch(self, watch.report, watch.stop))
        self.add_callback(BestWatch(watch.config, watch.report))
        for callback in callbacks(watch.config):
            self.add_callback(callback)

    @property
    def plan(self) -> dict[str, Any]:
        """What was known of the run before its model was wrapped."""
        return self._watch.plan

    def shown_rows(self, train: Any, held_out: Any) -> dict[str, Any]:
        """The rows that the library is given while it is made, before Lathe's take their place."""
        return {"train_dataset": train, "eval_dataset": held_out}

    def place_data(self, train: Any, held_out: Any) -> None:
        """Rows as Lathe has prepared them, in Lathe's order."""
        self.train_dataset, self.eval_dataset = train, held_out
        self._stream = train if isinstance(train, Stream) else None
        self._sampler = self._batches = None
        if self._stream is None:
            order = train.order or Shuffled(len(train), self.args.seed)
            share = self._train_batch_size, self.args.process_index, self.args.world_size
            if self.sequence_shares > 1:  # DeepSpeed's loader takes accelerate's
                self._sampler = EpochSampler(order)
            else:
                self._batches = RankBatches(order, *share)

    def begun(self, placement: dict[str, Any], state: TrainerState) -> None:
        """Called once the model is wrapped and placed: says what is about to be trained."""
        self.strategy = placement | {"precision": self._watch.plan["precision"]}
        if self._watch.config.gradient_checkpointing is Checkpointing.SELECTIVE:
            spare_every_second_layer(self.model)
        if counting := counter():
            counting.hold(self.model, "weights")
        self.memory_before = used_bytes()
        self._watch.report.once(
            Planned(
                total_steps=state.max_steps,
                start_step=state.global_step,
                engine=placement["engine"],
                zero_stage=placement["stage"],
                world_size=placement["world_size"],
                **self._watch.plan,
            )
        )

    def train(self, resume_from_checkpoint: str | None = None, **named: Any) -> Any:
        """The library's; from a checkpoint of a run that has taken its last step, no more is taken."""
        self._resumed_from = resume_from_checkpoint
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **named)

    def _run_epoch(self, *arguments: Any, **named: Any) -> None:
        """The library's, which takes a step before it looks whether there is one left to take, and leaves out the evaluation of
        an epoch that ended with the checkpoint."""
        if self._resumed_from:
            if self._evaluation_is_missing():
                self._evaluate(None, None)
            self.control.should_training_stop |= self._is_done()
        if not self.control.should_training_stop:
            super()._run_epoch(*arguments, **named)

    def _is_done(self) -> bool:
        """Whether the run has taken its last step, or was stopped early."""
        return self.state.global_step >= self.state.max_steps or out_of_patience(self._watch.config, self.state)

    def _evaluation_is_missing(self) -> bool:
        by_epoch = self.eval_dataset is not None and self._watch.config.eval_strategy is Interval.EPOCH
        at_end = self._batches is not None and self.state.global_step % self._steps_per_epoch == 0
        return by_epoch and at_end and all(one.step != self.state.global_step for one in evaluations(self.state))

    @property
    def _steps_per_epoch(self) -> int:
        source = self._sampler or self._batches
        assert source
        world = self.args.world_size // self.sequence_shares
        return steps_per_epoch(source.units, self._train_batch_size, self.args.gradient_accumulation_steps, world)

    def epoch_begins(self) -> None:
        """Tells the sampler which epoch it is: on a resume with several ranks neither library nor accelerate does."""
        if self._stream:
            self._stream.share = replace(self._stream.share, start_step=self.state.global_step)
        elif source := self._sampler or self._batches:
            source.epoch = self.state.global_step // self._steps_per_epoch

    def step_begins(self) -> None:
        """Called before the first micro step of each step. A resumed stream has its random state put back here: the library
        does so where it skips rows, and a stream skips them itself."""
        self._watch.moments.begin()
        if self._stream and self._resumed_from:
            self._load_rng_state(self._resumed_from)
        self._resumed_from = None

    def get_train_dataloader(self) -> DataLoader[Any]:
        """A stream's batches go to the ranks as it says itself; accelerate would have every rank read for all."""
        if self._stream is None:
            loader: DataLoader[Any] = super().get_train_dataloader()
            return loader
        pinned = self.args.dataloader_pin_memory
        apart = torch.Generator()  # a loader draws a number when it begins, which is not to be one of dropout's
        return DataLoader(
            self._stream, self._train_batch_size, collate_fn=self.data_collator, pin_memory=pinned, generator=apart
        )

    def _get_train_sampler(self, train_dataset: Any = None) -> EpochSampler | None:
        return self._sampler

    def create_optimizer(self, *arguments: Any) -> torch.optim.Optimizer:
        """The library's, or one of ours that it does not know by its name."""
        self.optimizer_cls_and_kwargs = optimizer_factory(self._watch.config)
        ratio = self._watch.config.loraplus_lr_ratio if self._watch.config.method.is_lora else None
        if ratio and self.optimizer is None:
            model = next((one for one in arguments if one is not None), self.model)
            self.optimizer = loraplus(self, model, ratio)
        made: torch.optim.Optimizer = super().create_optimizer(*arguments)
        return made

    def create_scheduler(self, num_training_steps: int, *arguments: Any, **named: Any) -> Any:
        """The library's; some schedulers must be told how long the run is, which is known now."""
        self.args.lr_scheduler_kwargs = scheduler_arguments(self._watch.config, num_training_steps)
        return super().create_scheduler(num_training_steps, *arguments, **named)

    @property
    def watch(self) -> Watch:
        """Whom it reports to."""
        return self._watch

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *arguments: Any) -> torch.Tensor:
        """One forward and backward pass; counts the tokens that are not padding, without waiting for the device."""
        self.throughput.add(*self.count(inputs))
        self._watch.moments.train(self.state.global_step + 1, inputs)
        loss: torch.Tensor = super().training_step(model, inputs, *arguments)
        return loss

    def prediction_step(self, model: torch.nn.Module, inputs: dict[str, Any], *arguments: Any, **named: Any) -> Any:
        """The library's, on the next batch of the evaluation."""
        self._watch.moments.evaluate(self.state.global_step, inputs)
        return super().prediction_step(model, inputs, *arguments, **named)

    def compute_loss_context_manager(self) -> ExitStack:
        """The library's, and where activations are kept."""
        stack: ExitStack = super().compute_loss_context_manager()
        if self.model.training:
            stack.enter_context(keeping(self._watch.config.gradient_checkpointing, self.args.device))
        return stack

    def count(self, inputs: dict[str, Any]) -> tuple[torch.Tensor, int | torch.Tensor]:
        """Tokens of a batch that are no padding, and its rows."""
        return inputs["attention_mask"].sum(), len(inputs["attention_mask"])

    def items(self, inputs: dict[str, Any]) -> torch.Tensor:
        """The rows of a batch, of which a loss is the mean; the trainer of tokens counts those."""
        return torch.as_tensor(self.count(inputs)[1])

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Reports losses and rates; called on every rank at the same step."""
        super().log(logs, start_time)  # the trainers of preferences add their own measures to `logs`
        values: dict[str, float | None] = {kept: float(logs[name]) for name, kept in _LOGGED.items() if name in logs}
        if "loss" in values:
            self.last_loss = values["loss"]
            values |= self.throughput.since_last()
        if values:
            self._watch.report.once(Metrics(step=self.state.global_step, values=values))
            self._watch.report.memory(self.state.global_step)

    def evaluate(self, *arguments: Any, **named: Any) -> dict[str, float]:
        """The evaluation loss; given up, and a checkpoint saved instead, when the run is asked to stop meanwhile."""
        self.throughput.pause()
        self._watch.moments.begin()
        try:
            with self._watch.report.during("evaluating"):
                metrics: dict[str, float] = super().evaluate(*arguments, **named)
        except StopRequested:
            self._watch.report.enter("training")
            self.control.should_save = self.control.should_training_stop = True
            return {"eval_loss": math.nan}  # neither the best nor an improvement
        finally:
            self.throughput.go_on()
        self.last_evaluation = Evaluation.of({"step": self.state.global_step, **metrics})
        return metrics

    def go_back_to_best(self) -> None:
        """Puts back the weights of the lowest evaluation loss, where that is asked for. Every rank calls it."""
        config, report = self._watch.config, self._watch.report
        lowest = best(evaluations(self.state)) if config.load_best_at_end else None
        if lowest is None or lowest.step == self.state.global_step:
            return
        checkpoint = manifest.checkpoints_dir(self._watch.run_dir) / f"checkpoint-{lowest.step}"
        if reason := manifest.fault(checkpoint):
            told = f"The result is that of the last step: the best checkpoint, {checkpoint.name}, cannot be used, {reason}."
            report.once(Note(message=told, level="warning"))
            return
        self.state.best_model_checkpoint = str(checkpoint)
        self._load_best_model()
        self.last_evaluation = lowest
        report.once(Note(message=f"The result is that of step {lowest.step}, which has the lowest evaluation loss."))

    def _seal(self, checkpoint: Path) -> None:
        size = manifest.seal(checkpoint)
        config = self._watch.config
        manifest.prune(self._watch.run_dir, config.save_total_limit, kept_step(config, self.state))
        path = str(checkpoint.relative_to(self._watch.run_dir))
        self._watch.report.once(CheckpointSaved(step=self.state.global_step, path=path, bytes=size))

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        self.throughput.pause()
        with self._watch.report.during("saving"):
            checkpoint = manifest.checkpoints_dir(self._watch.run_dir) / f"checkpoint-{self.state.global_step}"
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()  # every rank's files are written
            with main_rank_works(f"sealed {checkpoint.name}") as mine:
                if mine:
                    self._seal(checkpoint)
        self.throughput.go_on()
