"""transformers' Trainer, made to report what it does, to seal its checkpoints and to leave when asked."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from peft import PeftModel
from torch.utils.data import DataLoader
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import EvalLoopOutput

from training import manifest
from training.config import Precision, RunConfig
from training.data import Collator, EpochSampler, TokenDataset
from training.distributed import describe
from training.evaluation import EvenRows, TokenMean
from training.events import CheckpointSaved, Metrics, Placed, Planned
from training.failure import StopRequested
from training.model import parameter_counts, targeted_modules
from training.order import steps_per_epoch
from training.prepare import Data
from training.report import Report, used_bytes
from training.stopping import StopSignal
from training.streaming import Stream

# What Trainer logs, and the name it is kept under; the rest it can be asked for at any time.
_LOGGED = ("loss", "learning_rate", "grad_norm", "eval_loss")


def make_trainer(
    config: RunConfig,
    run_dir: Path,
    report: Report,
    stop: StopSignal,
    model: PreTrainedModel | PeftModel,
    arguments: TrainingArguments,
    tokenizer: PreTrainedTokenizerBase,
    data: Data,
    precision: Precision,
) -> "RunTrainer":
    """The trainer of a run: what was prepared, joined."""
    trainable, total = parameter_counts(model)
    plan = {
        "train_rows": data.train.num_rows,
        "eval_rows": data.held_out.num_rows if data.held_out else 0,
        "skipped_rows": data.skipped_rows,
        "truncated_rows": data.truncated_rows,
        "precision": precision.value,
        "trainable_parameters": trainable,
        "total_parameters": total,
        "target_modules": targeted_modules(model),
    }
    together = config.micro_batch_size * config.num_processes
    return RunTrainer(
        run_dir=run_dir,
        report=report,
        stop=stop,
        keep_checkpoints=config.save_total_limit,
        plan=plan,
        model=model,
        args=arguments,
        processing_class=tokenizer,
        data_collator=Collator(tokenizer.pad_token_id),
        train_dataset=data.train if isinstance(data.train, Stream) else TokenDataset(data.train),
        eval_dataset=EvenRows(TokenDataset(data.held_out), together) if data.held_out else None,
    )


class RunTrainer(Trainer):  # type: ignore[misc]
    """A Trainer whose numbers go to the run's report."""

    def __init__(
        self,
        *,
        run_dir: Path,
        report: Report,
        stop: StopSignal,
        keep_checkpoints: int,
        plan: dict[str, Any],
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self._stream = self.train_dataset if isinstance(self.train_dataset, Stream) else None
        self._sampler = None if self._stream else EpochSampler(len(self.train_dataset), self.args.seed)
        self._run_dir, self._report, self._keep, self._plan = run_dir, report, keep_checkpoints, plan
        self.throughput = Throughput(self.args.device)
        self.strategy: dict[str, Any] = {}
        self._token_mean: TokenMean | None = None  # while evaluating
        self.memory_before = 0
        self.last_loss: float | None = None
        self.last_evaluation: tuple[int, float | None] = (-1, None)
        self.add_callback(StepWatch(self, report, stop))

    def begun(self, placement: dict[str, Any], state: TrainerState) -> None:
        """Called once the model is wrapped and placed: says what is about to be trained."""
        self.strategy = placement | {"precision": self._plan["precision"]}
        self.memory_before = used_bytes()
        self._report.once(
            Planned(
                total_steps=state.max_steps,
                start_step=state.global_step,
                engine=placement["engine"],
                zero_stage=placement["stage"],
                world_size=placement["world_size"],
                **self._plan,
            )
        )

    def epoch_begins(self) -> None:
        """Tells the sampler which epoch it is: on a resume with several ranks neither library nor accelerate does."""
        if self._stream:
            self._stream.share = replace(self._stream.share, start_step=self.state.global_step)
        elif self._sampler:
            world, accumulation = self.args.world_size, self.args.gradient_accumulation_steps
            per_epoch = steps_per_epoch(len(self._sampler), self._train_batch_size, accumulation, world)
            self._sampler.epoch = self.state.global_step // per_epoch

    def get_train_dataloader(self) -> DataLoader[Any]:
        """A stream's batches go to the ranks as it says itself; accelerate would have every rank read for all."""
        if self._stream is None:
            loader: DataLoader[Any] = super().get_train_dataloader()
            return loader
        pinned = self.args.dataloader_pin_memory
        return DataLoader(self._stream, self._train_batch_size, collate_fn=self.data_collator, pin_memory=pinned)

    def _get_train_sampler(self, train_dataset: Any = None) -> EpochSampler | None:
        return self._sampler

    def training_step(
        self, model: torch.nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """One forward and backward pass; counts the tokens that are not padding, without waiting for the device."""
        self.throughput.add(inputs["attention_mask"])
        loss: torch.Tensor = super().training_step(model, inputs, num_items_in_batch)
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Reports losses and rates; called on every rank at the same step."""
        values: dict[str, float | None] = {name: float(logs[name]) for name in _LOGGED if name in logs}
        if "loss" in values:
            self.last_loss = values["loss"]
            values |= self.throughput.since_last()
        if values:
            self._report.once(Metrics(step=self.state.global_step, values=values))
            self._report.memory(self.state.global_step)
        super().log(logs, start_time)

    def evaluate(self, *arguments: Any, **named: Any) -> dict[str, float]:
        """The evaluation loss; given up, and a checkpoint saved instead, when the run is asked to stop meanwhile."""
        self.throughput.pause()
        try:
            with self._report.during("evaluating"):
                metrics: dict[str, float] = super().evaluate(*arguments, **named)
        except StopRequested:
            self._report.enter("training")
            self.control.should_save = self.control.should_training_stop = True
            return {}
        finally:
            self.throughput.go_on()
        self.last_evaluation = (self.state.global_step, metrics.get("eval_loss"))
        return metrics

    def evaluation_loop(self, *arguments: Any, **named: Any) -> EvalLoopOutput:
        """The library's loop, with the loss as the mean over tokens in the place of its mean over batches."""
        mean = self._token_mean = TokenMean(self.args.device)
        try:
            output = super().evaluation_loop(*arguments, **named)
        finally:
            self._token_mean = None
        if "eval_loss" in output.metrics:
            output.metrics["eval_loss"] = mean.value()
        return output

    def prediction_step(self, model: torch.nn.Module, inputs: dict[str, Any], *arguments: Any, **named: Any) -> Any:
        """The library's step; its batch's loss is also kept with the number of tokens behind it."""
        loss, *rest = super().prediction_step(model, inputs, *arguments, **named)
        assert self._token_mean is not None
        self._token_mean.add(loss, inputs["labels"].to(loss.device))
        return loss, *rest

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Any:
        # In evaluation each batch's loss is the mean of its own tokens; TokenMean brings batches and ranks together.
        return None if self._token_mean else super()._get_num_items_in_batch(batch_samples, device)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        self.throughput.pause()
        with self._report.during("saving"):
            checkpoint = manifest.checkpoints_dir(self._run_dir) / f"checkpoint-{self.state.global_step}"
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()  # every rank's files are written
            if self._report.rank == 0:
                size = manifest.seal(checkpoint)
                manifest.prune(self._run_dir, self._keep)
                path = str(checkpoint.relative_to(self._run_dir))
                self._report.once(CheckpointSaved(step=self.state.global_step, path=path, bytes=size))
        self.throughput.go_on()


class StepWatch(TrainerCallback):  # type: ignore[misc]
    """Reports where each rank stands when training begins, and looks between steps whether to stop."""

    def __init__(self, trainer: RunTrainer, report: Report, stop: StopSignal) -> None:
        self._trainer, self._report, self._stop = trainer, report, stop

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._stop.training_begins()
        placement = describe(self._trainer.model_wrapped)
        shards = {
            name: placement.pop(name) for name in ("parameter_shard", "parameters", "optimizer_shard", "optimized")
        }
        self._report.each(Placed(rank=self._report.rank, **shards))
        self._trainer.begun(placement, state)
        self._report.enter("training")
        self._report.memory(state.global_step, always=True)

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._trainer.epoch_begins()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self._stop.agreed():
            control.should_evaluate = False
            control.should_save = control.should_training_stop = True

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self._stop.agreed():
            raise StopRequested


class Throughput:
    """Tokens and rows per second of training, all ranks together, leaving out evaluation and saving."""

    def __init__(self, device: torch.device) -> None:
        self._counts = torch.zeros(2, dtype=torch.float64, device="cpu" if device.type == "cpu" else device)
        self._total = torch.zeros(2, dtype=torch.float64)
        self._seconds = 0.0
        self._since: float | None = None
        self._interval = 0.0

    def add(self, attention_mask: torch.Tensor) -> None:
        """Counts a micro batch: a mask of shape (rows, length) with 1 where there is no padding."""
        if self._since is None:
            self._since = time.perf_counter()
        self._counts[0] += attention_mask.sum()
        self._counts[1] += attention_mask.shape[0]

    def pause(self) -> None:
        if self._since is not None:
            self._interval += time.perf_counter() - self._since
            self._since = None

    def go_on(self) -> None:
        self._since = time.perf_counter()

    def since_last(self) -> dict[str, float | None]:
        """tokens_per_second and samples_per_second since the last call; a collective when there are several ranks."""
        counts = self._counts.clone()
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(counts)
        self._counts.zero_()
        self.pause()
        seconds, self._interval = self._interval, 0.0
        self.go_on()
        self._total += counts.cpu()
        self._seconds += seconds
        return _rates(counts.cpu(), seconds)

    def overall(self) -> dict[str, float | None]:
        """The same over the whole of this attempt."""
        return _rates(self._total, self._seconds)

    @property
    def seconds(self) -> float:
        """Seconds spent in training steps that were logged."""
        return self._seconds


def _rates(counts: torch.Tensor, seconds: float) -> dict[str, float | None]:
    tokens, rows = counts.tolist()
    known = seconds > 0
    return {
        "tokens_per_second": tokens / seconds if known else None,
        "samples_per_second": rows / seconds if known else None,
    }
