"""The base of all trainers: reports, seals checkpoints, keeps Lathe's order of rows, stops when requested."""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from torch.utils.data import DataLoader
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME

from training.batches.layout import as_before
from training.batches.sets import SETS, RankBatches, Sets
from training.batches.streaming import Stream, with_loss
from training.checkpointing.checkpointer import Checkpointer
from training.config.choices import Checkpointing, Interval, Precision
from training.errors import StopRequested
from training.models.activation_checkpointing import (
    checkpoint_every_second_layer,
    offloaded_activations,
    saved_activations,
)
from training.ranks.distributed import reduce_over_ranks
from training.ranks.pace import Pace
from training.reports.live_memory import counter
from training.reports.report import used_bytes
from training.run_folder import checkpoints
from training.run_folder.evaluated import final_loss
from training.run_folder.events import LOSS_OF, Metrics, Planned
from training.run_folder.paths import checkpoint_dir
from training.tokens.order import Shuffled, steps_per_epoch
from training.trainer.callbacks import Evaluation, best_to_load, evaluations, stops_early
from training.trainer.checkpointing_trainer import CheckpointingTrainer, TrainerContext
from training.trainer.divergence import Divergence, best_first
from training.trainer.evaluation import SetLosses
from training.trainer.metrics import Throughput, recorded
from training.trainer.optimizers import StepInBackward, loraplus, optimizer_factory, scheduler_arguments


class ReportingTrainer(CheckpointingTrainer):
    """The trainer of every run: it writes its metrics to the run's report. What a task minimizes is its objective."""

    optimizer: torch.optim.Optimizer | None
    state: TrainerState
    step_in_backward: StepInBackward | None = None
    _offloading: AbstractContextManager[Any] = nullcontext()
    _told_without_loss = False

    def __init__(self, *, context: TrainerContext, train_dataset: Any, eval_dataset: Any, **arguments: Any) -> None:
        context.report.tracker = context.tracker
        self.sequence_shares = context.config.sequence_parallel_size
        super().__init__(**arguments, train_dataset=train_dataset, eval_dataset=eval_dataset)
        self.context = context
        self.beside = ExitStack()
        self._place_data(train_dataset, eval_dataset)
        self.checkpointer = Checkpointer(context.run_dir, context.config, context.report)
        self.throughput = Throughput(self.args.device)
        self.pace = Pace(self.args.device)
        scaled = context.plan["precision"] == Precision.FP16
        self.divergence = Divergence(context.config.divergence_steps, self.args.device, scaled=scaled)
        self.strategy: dict[str, Any] = {}
        self.memory_before = 0
        self.last_loss: float | None = None
        self.last_evaluation = Evaluation(step=-1)
        self.objective.begin(self)

    def _place_data(self, train: Any, held_out: Any) -> None:
        """Sets the order of the prepared rows, and their data sets."""
        self.held_out_sets = getattr(held_out, "sets", None)
        sets: Sets | None = getattr(train, "sets", None)
        self.set_losses = SetLosses(sets, self.args.device) if sets and sets.several else None
        self._stream = train if isinstance(train, Stream) else None
        self.rank_batches = None
        if self._stream is None:
            order = train.order or Shuffled(len(train), self.args.seed)
            group = self.args.process_index // self.sequence_shares  # of processes that share sequences
            self.rank_batches = RankBatches(
                order, self._train_batch_size, group, self._groups,
                accumulation=self.args.gradient_accumulation_steps, iterations=self.context.config.iterations,
            )  # fmt: skip

    def on_model_placed(self, placement: dict[str, Any], state: TrainerState) -> None:
        """Called when the model is wrapped and placed; reports the plan of the run."""
        self.share_gradients()
        of_objective = self.objective.placed()
        self.strategy = placement | {"precision": self.context.plan["precision"]} | of_objective
        if self.context.config.gradient_checkpointing is Checkpointing.SELECTIVE:
            checkpoint_every_second_layer(self.model)
        if self.context.config.offload_activations:
            self._offloading = offloaded_activations(self.model, self.args.device)
        if self.context.config.steps_in_backward:
            self.step_in_backward = StepInBackward(self.optimizer.optimizer)  # type: ignore[union-attr]
        if counting := counter():
            counting.hold(self.model, "weights")
        self.memory_before = used_bytes()
        self.context.report.for_run(
            Planned(
                total_steps=state.max_steps,
                start_step=state.global_step,
                engine=placement["engine"],
                zero_stage=placement["stage"],
                world_size=placement["world_size"],
                **self.context.plan,
            )
        )

    def _run_epoch(self, *arguments: Any, **named: Any) -> None:
        """Trainer's epoch loop, corrected after a resume.

        Trainer takes a step before it checks if any is left, and skips the evaluation of an epoch that ended with the checkpoint.
        """
        if self.resumed_from:
            if self._evaluation_is_missing():
                self._evaluate(None, None)
            self.control.should_training_stop |= self._is_done() or self.paused
        if not self.control.should_training_stop:
            super()._run_epoch(*arguments, **named)

    def _is_done(self) -> bool:
        """True if the run has taken its last step or stopped early."""
        return self.state.global_step >= self.state.max_steps or stops_early(self.context.config, self.state)

    @property
    def paused(self) -> bool:
        """True if the run has reached the step at which its sweep decides, and is not done anyway."""
        return self.context.stop.pauses_at(self.state.global_step) and not self._is_done()

    def _evaluation_is_missing(self) -> bool:
        """True if the epoch ended with the checkpoint, which is older than the epoch's evaluation."""
        per_epoch = self.eval_dataset is not None and self.context.config.eval_strategy is Interval.EPOCH
        at_end = self.rank_batches is not None and self.state.global_step % self._steps_per_epoch == 0
        return per_epoch and at_end and all(e.step != self.state.global_step for e in evaluations(self.state))

    @property
    def _groups(self) -> int:
        return int(self.args.world_size // self.sequence_shares)

    @property
    def _steps_per_epoch(self) -> int:
        assert self.rank_batches
        accumulation = self.args.gradient_accumulation_steps
        units, iterations = self.rank_batches.units, self.rank_batches.iterations
        return steps_per_epoch(units, self._train_batch_size, accumulation, self._groups, iterations)

    def on_epoch_begin(self) -> None:
        """Sets the sampler's epoch; after a resume with several ranks neither transformers nor accelerate does."""
        if self._stream:
            self._stream.share = replace(self._stream.share, start_step=self.state.global_step)
        elif self.rank_batches:
            self.rank_batches.epoch = self.state.global_step // self._steps_per_epoch

    def on_step_begin(self) -> None:
        """Called before the first micro step of each step; restores the random state of a resumed stream.

        Trainer restores it where it skips rows, but a stream skips its rows itself.
        """
        self.checkpointer.check()
        self.prepare_checkpoints()
        self.context.tracker.begin()
        if self._stream and self.resumed_from:
            self._load_rng_state(self.resumed_from)
        self.resumed_from = None

    def get_batch_samples(self, batches: Iterator[Any], *arguments: Any) -> tuple[list[Any], None]:
        """Trainer's next micro batches; their loading is timed."""
        return super().get_batch_samples(self.pace.loading(batches), *arguments)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Loads a stream without accelerate, since it yields only this rank's rows; of those without loss none is computed
        beside others."""
        if self._stream:
            collate = self.data_collator
            return self.loader(self._stream, lambda rows: collate(with_loss(rows)), batch_size=self._train_batch_size)
        loader: DataLoader[Any] = super().get_train_dataloader()
        return loader

    def create_optimizer(self, *arguments: Any) -> torch.optim.Optimizer:
        """Creates an optimizer that transformers knows by name, or one of Lathe's."""
        self.optimizer_cls_and_kwargs = optimizer_factory(self.context.config)
        ratio = self.context.config.loraplus_lr_ratio if self.context.config.method.is_lora else None
        if ratio and self.optimizer is None:
            model = next((argument for argument in arguments if argument is not None), self.model)
            self.optimizer = loraplus(self, model, ratio)
        optimizer: torch.optim.Optimizer = super().create_optimizer(*arguments)
        return optimizer

    def create_scheduler(self, num_training_steps: int, *arguments: Any, **named: Any) -> Any:
        """Creates the scheduler; sets the arguments that depend on the number of steps, which is known now."""
        self.args.lr_scheduler_kwargs = scheduler_arguments(self.context.config, num_training_steps)
        return super().create_scheduler(num_training_steps, *arguments, **named)

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *arguments: Any) -> torch.Tensor:
        """Trainer's forward and backward pass; also counts tokens, without synchronizing with the device."""
        # A micro batch of weight 0 stands for rows that there are not, or that carry no loss.
        trains = self.step_weights.counts if self.step_weights else 1
        tokens, rows = self.objective.size(inputs)
        self.throughput.add(tokens * trains, rows * trains / self.sequence_shares)
        self.item_sets = inputs.pop(SETS, None)
        self.context.tracker.train(self.state.global_step + 1, inputs)
        with self._offloading:
            loss: torch.Tensor = super().training_step(model, inputs, *arguments)
        self.divergence.add_loss(loss)
        return loss

    def training_pass(self, model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        """The same outside a step, for the probe; an optimizer that steps in the backward pass sees gradients of 0."""
        if self.step_in_backward:
            self.step_in_backward.discards = True
        with self._offloading:
            loss = super().training_pass(model, inputs)
        if self.step_in_backward:
            self.step_in_backward.discards = False
            self.step_in_backward.take_norm()
        return loss

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        """Trainer's norm of the gradient; gradients that are freed in the backward pass are measured there."""
        norm = self.step_in_backward.take_norm() if self.step_in_backward else super()._get_grad_norm(model, grad_norm)
        self.divergence.add_norm(norm)
        return norm

    def prediction_step(self, model: torch.nn.Module, inputs: dict[str, Any], *arguments: Any, **named: Any) -> Any:
        """Trainer's step on the next batch of an evaluation."""
        self.context.tracker.evaluate(self.state.global_step, inputs)
        return super().prediction_step(model, inputs, *arguments, **named)

    def compute_loss_context_manager(self) -> ExitStack:
        """Trainer's context, with offloading of activations if configured."""
        stack: ExitStack = super().compute_loss_context_manager()
        if self.model.training:
            stack.enter_context(self.pace.forward())
            stack.enter_context(saved_activations(self.context.config.gradient_checkpointing, self.args.device))
        return stack

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Reports losses and rates; called on every rank at the same step."""
        self.state.epoch = self._epochs()
        logs |= self.objective.measured(logs)
        super().log(logs, start_time)
        values, extra = recorded(logs), dict[str, float | None]()
        if "loss" in values:
            self.last_loss = final_loss(values)
            extra = self.throughput.since_last() | {"epoch": self.state.epoch}
            if self._stream:
                extra["rows_without_loss"] = self._rows_without_loss()
            if self.set_losses:
                extra |= {f"{LOSS_OF}{name}": loss for name, loss in self.set_losses.take().items()}
        values |= extra
        values |= {name: float(value) for name, value in logs.items() if name.startswith(f"eval_{LOSS_OF}")}
        if values:
            self.context.report.for_run(Metrics(step=self.state.global_step, values=values))
            self.context.report.memory(self.state.global_step)
        self.context.trackers.log(self.state, logs | extra)

    def _epochs(self) -> float:
        """How often the run has trained on all rows. Trainer counts all steps of a stream as one epoch, and of others the micro
        batches, of which the last ones of an epoch may have fewer rows, or none."""
        step, batch = self.state.global_step, self.context.config.global_batch_size
        if self._stream:
            return float(step * batch / self._stream.num_rows)
        assert self.rank_batches
        epochs, further = divmod(step, self._steps_per_epoch)
        return float(epochs + further / self.rank_batches.iterations * batch / self.rank_batches.units)

    def _rows_without_loss(self) -> int:
        """The places of the stream without loss tokens in this attempt, on all ranks; warns of the first ones. A collective."""
        assert self._stream
        places = torch.tensor(self._stream.without_loss, device=self.args.device)
        count = int(reduce_over_ranks(places))
        if count and not self._told_without_loss:
            self._told_without_loss = True
            self.context.report.warn(
                f"{count:,} rows of this attempt's steps up to {self.state.global_step:,} have no loss tokens within max_length "
                f"{self.context.config.max_length:,}. Such rows keep their places with weight 0; the metric rows_without_loss "
                "counts them."
            )
        return count

    def evaluate(self, *arguments: Any, **named: Any) -> dict[str, float]:
        """Evaluates, unless training has diverged. If a stop is requested meanwhile, it aborts the evaluation, and the run saves a
        checkpoint and stops."""
        if self.context.stop.diverged:
            return {"eval_loss": math.nan}
        self.throughput.pause()
        self.context.tracker.begin()
        try:
            with self.objective.evaluating(), self.context.report.during("evaluating"), as_before(self.model):
                metrics: dict[str, float] = super().evaluate(*arguments, **named)
            self._answer()
        except StopRequested:
            self.context.report.enter("training")
            self.control.should_save = self.control.should_training_stop = True
            return {"eval_loss": math.nan}  # never the best
        finally:
            self.throughput.resume()
        self.last_evaluation = Evaluation.of({"step": self.state.global_step, **metrics})
        return metrics

    def _answer(self) -> None:
        """Answers held-out rows after an evaluation and reports the scores, if it is the turn of this evaluation.

        Raises:
            StopRequested: a stop is requested meanwhile.
        """
        context = self.context
        if not context.answers.due(len(evaluations(self.state))):
            return

        def check() -> None:
            if context.stop.agreed():
                raise StopRequested

        with context.report.during("answering"), self.compute_loss_context_manager():
            values = context.answers.scores(self.model, self.args.device, check)
        context.report.for_run(Metrics(step=self.state.global_step, values=dict(values)))
        context.trackers.log(self.state, values)

    def has_diverged(self) -> bool:
        """True if training stopped since it diverged, or if weights or optimizer state are no longer finite. A collective."""
        digest = None if self.context.stop.diverged else self.digest()
        self.context.stop.diverged |= bool(digest and digest.not_finite)
        return self.context.stop.diverged

    def load_best_finite(self) -> bool:
        """Loads weights and state of the best checkpoint with finite weights: that of the lowest evaluation, else the newest.

        Every rank calls it. False if there is none.
        """
        usable = [path for path in checkpoints.sealed(self.context.run_dir) if not checkpoints.fault(path)]
        order = [best_first({entry.step: entry.rank for entry in evaluations(self.state)}, usable)]
        if self.args.world_size > 1:
            broadcast_object_list(order)
        for checkpoint in order[0]:
            self.load_weights(checkpoint)
            digest = self.digest()
            if digest is None or not digest.weights_not_finite:
                self.state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
                self.last_loss = None
                last = evaluations(self.state)[-1:]
                self.last_evaluation = last[0] if last else Evaluation(step=-1)
                return True
        return False

    def load_best_weights(self) -> None:
        """With load_best_at_end, loads the weights with the lowest evaluation loss. Every rank calls it."""
        config, report = self.context.config, self.context.report
        lowest = best_to_load(config, self.state)
        if lowest is None or lowest.step == self.state.global_step:
            return
        checkpoint = checkpoint_dir(self.context.run_dir, lowest.step)
        if reason := checkpoints.fault(checkpoint):
            message = (
                f"The result is that of the last step: the best checkpoint, {checkpoint.name}, is unusable: {reason}."
            )
            report.warn(message)
            return
        self.load_weights(checkpoint)
        self.last_evaluation = lowest
        report.note(f"The result is that of step {lowest.step}, with the lowest evaluation loss.")
