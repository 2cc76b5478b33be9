"""The trainer of a run: what was prepared, joined."""

from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments
from transformers.trainer_utils import EvalLoopOutput

from training.config import Precision, RunConfig
from training.data import Collator, TokenDataset
from training.evaluation import EvenRows, TokenMean
from training.model import parameter_counts, targeted_modules
from training.prepare import Data
from training.report import Report
from training.reporting import Reporting, Watch
from training.stopping import StopSignal
from training.streaming import Stream


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
) -> Reporting:
    """The trainer of a run: what was prepared, joined."""
    together = config.micro_batch_size * config.num_processes
    return RunTrainer(
        watch=Watch(run_dir, report, stop, config, _plan(model, data, precision)),
        model=model,
        args=arguments,
        processing_class=tokenizer,
        data_collator=Collator(tokenizer.pad_token_id),
        train_dataset=data.train if isinstance(data.train, Stream) else TokenDataset(data.train),
        eval_dataset=EvenRows(TokenDataset(data.held_out), together) if data.held_out else None,
    )


def _plan(model: torch.nn.Module, data: Data, precision: Precision) -> dict[str, Any]:
    """What the run says of itself before the first step."""
    trainable, total = parameter_counts(model)
    return {
        "train_rows": data.train.num_rows,
        "eval_rows": data.held_out.num_rows if data.held_out else 0,
        "skipped_rows": data.skipped_rows,
        "truncated_rows": data.truncated_rows,
        "precision": precision.value,
        "trainable_parameters": trainable,
        "total_parameters": total,
        "target_modules": targeted_modules(model),
    }


class RunTrainer(Reporting):
    """Trains on tokens: its evaluation loss is a mean over tokens, as the training loss is."""

    _token_mean: TokenMean | None = None  # while evaluating

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
