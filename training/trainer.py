"""The trainer of a run: what was prepared, joined."""

from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerState, TrainingArguments
from transformers.trainer_utils import EvalLoopOutput, EvalPrediction

from training.adapters import targeted_modules
from training.config import Packing, Precision, RunConfig, Task
from training.data import TokenDataset
from training.evaluation import EvenRows, TokenMean, perplexity
from training.events import Note
from training.failure import UserError
from training.flat import base_of, count_flat, leak
from training.layout import PLAIN, Batches, dataset, lay_out
from training.model import load_model, parameter_counts, weights_dtype
from training.moments import Moments
from training.objectives import Objective
from training.prepare import Data
from training.report import Report
from training.reporting import Reporting, Watch
from training.sequence_parallel import refuse_unfit, shared, true_gradient
from training.stopping import StopSignal


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
    held_out: Any = TokenDataset(data.held_out) if data.held_out else None
    if held_out and issubclass(aim.trainer, RunTrainer):
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
    """Trains on tokens: its evaluation loss is a mean over tokens, as the training loss is."""

    _token_mean: TokenMean | None = None  # while evaluating

    def begun(self, placement: dict[str, Any], state: TrainerState) -> None:
        """Tries first whether the model, as it really runs, keeps rows apart that lie end to end."""
        if isinstance(self.data_collator, Batches) and self.data_collator.flat:
            self._try_separation(self.data_collator)
        super().begun(placement, state)
        self.strategy |= {name: self._watch.plan.get(name, "") for name in ("packing", "attention")}

    def _try_separation(self, batches: Batches) -> None:
        config = self._watch.config
        model = self.model if config.torch_compile else self.model_wrapped
        distance = leak(
            model, self.model.config.get_text_config().vocab_size, self.args.device, self._watch.plan["precision"]
        )
        if distance < 1:
            return
        name = type(base_of(model)).__name__
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

    def compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any], *arguments: Any, **named: Any) -> Any:
        """The library's; its gradient is put right where processes share sequences."""
        loss = super().compute_loss(model, inputs, *arguments, **named)
        size = self._watch.config.sequence_parallel_size
        return true_gradient(loss, size) if size > 1 and model.training else loss

    def evaluation_loop(self, *arguments: Any, **named: Any) -> EvalLoopOutput:
        """The library's loop, with the loss as the mean over tokens in the place of its mean over batches."""
        mean = self._token_mean = TokenMean(self.args.device)
        try:
            output = super().evaluation_loop(*arguments, **named)
        finally:
            self._token_mean = None
        if "eval_loss" in output.metrics:
            output.metrics["eval_loss"] = loss = mean.value()
            output.metrics["eval_perplexity"] = perplexity(loss)
        return output

    def prediction_step(self, model: torch.nn.Module, inputs: dict[str, Any], *arguments: Any, **named: Any) -> Any:
        """The library's step; its batch's loss is also kept with the number of tokens behind it."""
        loss, *rest = super().prediction_step(model, inputs, *arguments, **named)
        assert self._token_mean is not None
        labels = inputs["labels"].to(loss.device)
        # A decoder of its own predicts its first token too; otherwise nothing comes before the first to predict it from.
        self._token_mean.add(loss, labels if self.model.config.is_encoder_decoder else labels[:, 1:])
        return loss, *rest

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Any:
        # In evaluation each batch's loss is the mean of its own tokens; TokenMean brings batches and ranks together.
        return None if self._token_mean else super()._get_num_items_in_batch(batch_samples, device)


class ClassTrainer(Reporting):
    """Trains a classifier, and evaluates its accuracy beside the loss."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(
            compute_metrics=_accuracy,
            preprocess_logits_for_metrics=lambda logits, _: logits.argmax(-1),
            **arguments,
        )


def _accuracy(prediction: EvalPrediction) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions == prediction.label_ids).mean())}
