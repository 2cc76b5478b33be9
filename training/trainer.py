"""The trainer of a run: what was prepared, joined."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerState, TrainingArguments
from transformers.trainer_utils import EvalLoopOutput

from training.adapters import targeted_modules
from training.config import Packing, Precision, RunConfig, Task
from training.data import IGNORED, TokenDataset
from training.evaluation import EvenRows, Means, perplexity, predicted, token_loss
from training.events import Note
from training.failure import UserError
from training.flat import base_of, count_flat, leak
from training.freezing import beside_text
from training.global_batch import divides_by_count
from training.layout import PLAIN, Batches, dataset, lay_out
from training.model import load_model, parameter_counts, weights_dtype
from training.moments import Moments
from training.objectives import Objective
from training.prepare import Data
from training.report import Report
from training.reporting import Reporting, Watch
from training.sequence_parallel import refuse_unfit, shared, true_gradient
from training.stopping import StopSignal

_TRIED_TOKENS = 8


def make_trainer(
    config: RunConfig,
    aim: Objective,
    run_dir: Path,
    report: Report,
    stop: StopSignal,
    model: PreTrainedModel | PeftModel,
    arguments: TrainingArguments,
    tokenizer: PreTrainedTokenizerBase,
    data: Data,
    precision: Precision,
) -> Reporting:
    """The trainer of a run: what was prepared, joined.

    Raises:
        UserError: as `refuse_unfit`.
    """
    refuse_unfit(model, config)
    if unused := beside_text(base_of(model)):
        message = f"The model takes more than text. What text does not pass through is frozen: {', '.join(unused)}."
        report.once(Note(message=message))
    held_out: Any = TokenDataset(data.held_out) if data.held_out else None
    if held_out and config.sequence_parallel_size > 1:
        held_out = EvenRows(held_out, config.micro_batch_size * config.num_processes)
    more: dict[str, Any] = {}
    plan, collator, train = _plan(model, data, precision), aim.collator(tokenizer.pad_token_id), data.train
    if config.task in PLAIN and config.sequence_parallel_size == 1:  # parts of a sequence are of padded rows
        layout = lay_out(config, model, tokenizer.pad_token_id, on_cpu=arguments.device.type == "cpu")
        plan |= {"packing": layout.packing.value, "attention": layout.attention}
        collator = layout.collator
        report.once(Note(message=layout.words))
    if config.task in (Task.DPO, Task.KTO) and not config.method.adapts:
        # What the model is held to; an adapter is switched off for it instead.
        more["ref_model"] = load_model(config, weights_dtype(config, precision), len(tokenizer))
    rows = dataset(config, train)
    moments = Moments(config, train, data.held_out, getattr(rows, "order", None))
    return aim.trainer(
        **more,
        watch=Watch(run_dir, report, stop, config, plan, moments),
        model=model,
        args=arguments,
        processing_class=tokenizer,
        data_collator=shared(collator, config),
        train_dataset=rows,
        eval_dataset=held_out,
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
    """Trains on tokens: its losses are means over the tokens that carry loss."""

    def begun(self, placement: dict[str, Any], state: TrainerState) -> None:
        """Tries first whether the model, as it really runs, keeps rows apart that lie end to end, and how it counts tokens."""
        if isinstance(self.data_collator, Batches) and self.data_collator.flat:
            self._try_separation(self.data_collator)
        if self.sequence_shares == 1:
            self.divides_by_items = divides_by_count(self, self._as_it_runs, self._prepare_inputs(self._few_tokens()))
        super().begun(placement, state)
        self.strategy |= {name: self._watch.plan.get(name, "") for name in ("packing", "attention")}

    @property
    def _as_it_runs(self) -> torch.nn.Module:
        """The model as it is placed, before it is compiled for what it is not tried with."""
        placed: torch.nn.Module = self.model if self._watch.config.torch_compile else self.model_wrapped
        return placed

    @property
    def _vocabulary(self) -> int:
        return int(self.model.config.get_text_config().vocab_size)

    def _few_tokens(self) -> dict[str, torch.Tensor]:
        tokens = np.arange(1, 1 + _TRIED_TOKENS, dtype=np.int32) % self._vocabulary
        batch: dict[str, torch.Tensor] = self.data_collator([{"input_ids": tokens, "labels": tokens}])
        return batch

    def _try_separation(self, batches: Batches) -> None:
        config = self._watch.config
        distance = leak(self._as_it_runs, self._vocabulary, self.args.device, self._watch.plan["precision"])
        if distance < 1:
            return
        name = type(base_of(self.model)).__name__
        if config.packing is not Packing.AUTO:
            message = f"does not fit {name}: rows laid end to end see each other."
            raise UserError("packing", config.packing.value, message, "Set packing to auto or none.")
        batches.pad()
        self._watch.plan["packing"] = Packing.NONE.value
        message = f"{name} does not keep rows apart that are laid end to end, so they are padded after all."
        self._watch.report.once(Note(message=message, level="warning"))

    def count(self, inputs: dict[str, Any]) -> tuple[torch.Tensor, int | torch.Tensor]:
        """A flat batch has no mask: all of it is tokens, and each row begins at position 0."""
        return super().count(inputs) if "attention_mask" in inputs else count_flat(inputs)

    def items(self, inputs: dict[str, Any]) -> torch.Tensor:
        """Tokens that carry loss."""
        return (predicted(inputs, shifted=not self.model.config.is_encoder_decoder) != IGNORED).sum()

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """In training the model's own; its gradient is put right where processes share sequences. In an evaluation the tokens'
        alone, without what a router or an adapter adds."""
        if model.training:
            result = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            size = self.sequence_shares
            return true_gradient(result, size) if size > 1 else result
        _, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        loss = token_loss(outputs["logits"], inputs, shifted=not self.model.config.is_encoder_decoder)
        return (loss, outputs) if return_outputs else loss

    def evaluation_loop(self, *arguments: Any, **named: Any) -> EvalLoopOutput:
        """The perplexity beside the loss."""
        output = super().evaluation_loop(*arguments, **named)
        if "eval_loss" in output.metrics:
            output.metrics["eval_perplexity"] = perplexity(output.metrics["eval_loss"])
        return output


class ClassTrainer(Reporting):
    """Trains a classifier, and evaluates its accuracy beside the loss; both are means over rows."""

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The model's own; in an evaluation the share of rows whose class is right is kept too."""
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if not model.training:
            right = outputs["logits"].argmax(-1) == inputs["labels"].to(outputs["logits"].device)
            self._accuracy = right.float().mean()
        return (loss, outputs) if return_outputs else loss

    def measures(self, loss: torch.Tensor, inputs: dict[str, Any]) -> Means:
        """The accuracy beside the loss."""
        means = super().measures(loss, inputs)
        return means | {"accuracy": (self._accuracy, means["loss"][1])}
