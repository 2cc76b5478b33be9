"""Trainers for token losses and for classes, and their checks of the model before the first step."""

from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import TrainerState
from transformers.trainer_utils import EvalLoopOutput

from training.batches.layout import RunCollator, base_of, count_flat, cross_row_influence, evaluating
from training.batches.views import IGNORED, WEIGHTS
from training.config.choices import Packing
from training.errors import UserError
from training.ranks.sequence_parallel import gradient_factor, scale_gradient, shared_mean
from training.trainer.chunked_loss import ChunkedHead, agrees, make_chunked_head, refuse
from training.trainer.evaluation import Means, item_losses, perplexity, predicted, predicted_weights, token_loss
from training.trainer.global_batch import ModelLoss, divides_by_count
from training.trainer.reporting_trainer import ReportingTrainer

_TEST_TOKENS = 8
_RELATIVE_DIFFERENCE = 1e-5  # of two ways to compute a loss; an auxiliary loss is larger
_ROUNDING = 0.03  # of an auxiliary loss in 16 bits
_AUXILIARY = {  # a model's auxiliary outputs, and how its config names their weight
    ("aux_loss", "encoder_aux_loss", "decoder_aux_loss"): ("router_aux_loss_coef", "aux_loss_coef"),
    ("encoder_z_loss", "decoder_z_loss"): ("router_z_loss_coef",),
}


class RunTrainer(ReportingTrainer):
    """Trains on tokens: its losses are means over the tokens with loss."""

    _gradient_factor = 1
    _adds_auxiliary = False
    """True if the model adds a loss of another kind to its mean over tokens, which needs a weight of its own."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.chunked = make_chunked_head(self.context.config, self.model, self.context.report)

    def on_model_placed(self, placement: dict[str, Any], state: TrainerState) -> None:
        """First tests the model as it really runs: that flat batches do not mix rows, that the loss in chunks is the model's own,
        and how it normalizes its loss."""
        if isinstance(self.data_collator, RunCollator) and self.data_collator.flat:
            self._check_separation(self.data_collator)
        inputs = self._prepare_inputs(self._test_batch())
        if self.chunked:
            self._check_chunked_loss(self.chunked, inputs)
        if self.chunked:
            self.divides_by_items = True  # `model_loss` does
        elif self.sequence_shares == 1:
            weighted = self.context.config.weight_field is not None
            self.divides_by_items = not weighted and divides_by_count(self, self._test_model, inputs)
            own, tokens = self._own_losses(inputs)
            self._adds_auxiliary = not self.divides_by_items and not _equal(own, tokens)
        self._gradient_factor = gradient_factor(self.model_wrapped, self.sequence_shares)
        super().on_model_placed(placement, state)
        self.strategy |= {name: self.context.plan.get(name, "") for name in ("packing", "attention")}

    @property
    def _test_model(self) -> torch.nn.Module:
        """The wrapped model; with torch_compile the plain one, so that nothing is compiled for the test batches."""
        model: torch.nn.Module = self.model if self.context.config.torch_compile else self.model_wrapped
        return model

    @property
    def _vocabulary(self) -> int:
        return int(self.model.config.get_text_config().vocab_size)

    def _test_batch(self) -> dict[str, torch.Tensor]:
        tokens = np.arange(1, 1 + _TEST_TOKENS, dtype=np.int32) % self._vocabulary
        batch: dict[str, torch.Tensor] = self.data_collator([{"input_ids": tokens, "labels": tokens}])
        return batch

    def _check_separation(self, collator: RunCollator) -> None:
        config = self.context.config
        distance = cross_row_influence(
            self._test_model, self._vocabulary, self.args.device, self.context.plan["precision"]
        )
        if distance < 1:
            return
        name = type(base_of(self.model)).__name__
        if config.packing is not Packing.AUTO:
            message = f"does not fit {name}: it mixes the rows of a batch without padding."
            raise UserError("packing", config.packing.value, message, "Set packing to auto or none.")
        collator.pad()
        self.context.plan["packing"] = Packing.NONE.value
        self.context.report.warn(f"{name} mixes the rows of a batch without padding, so rows are padded.")

    def _check_chunked_loss(self, chunked: ChunkedHead, inputs: dict[str, Any]) -> None:
        """Compares the loss in chunks with the model's own, on a batch of a few tokens; every rank takes part.

        Raises:
            UserError: they differ, and the configuration demands a chunked loss.
        """
        plain, tokens = self._own_losses(inputs)
        chunked.place()
        with evaluating(self._test_model):
            outputs = chunked.outputs(self._test_model, inputs)
            loss = outputs["logits"] / self.items(inputs)
        config, report = self.context.config, self.context.report
        added, own = self._auxiliary(outputs), plain - tokens
        if not _equal(tokens + added, plain, allowed=_RELATIVE_DIFFERENCE * tokens.abs() + _ROUNDING * own.abs()):
            reason = f"it adds {float(own):.4g} to its loss over tokens, of which only {float(added):.4g} is known"
        elif agrees(loss + added, plain, self.context.plan["precision"]):
            message = (
                f"The loss is computed in chunks of {chunked.chunk:,} tokens (vocabulary: {chunked.vocabulary:,})."
            )
            report.note(message)
            return
        else:
            reason = (
                f"it changes its logits after its head (loss {float(loss + added):.4f}, its own {float(plain):.4f})"
            )
        chunked.remove()
        self.chunked = None
        refuse(config, report, reason)

    def _own_losses(self, inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the model's own loss of a batch without loss weights, and the mean over tokens; both of shape ()."""
        with evaluating(self._test_model):
            outputs = self._test_model(**inputs)
        return outputs["loss"], token_loss(outputs["logits"], inputs, shifted=self._shifted)

    def count(self, inputs: dict[str, Any]) -> tuple[torch.Tensor, int | torch.Tensor]:
        """Counts tokens without padding, and rows. A flat batch has no mask and no padding; its rows begin at position 0."""
        return super().count(inputs) if "attention_mask" in inputs else count_flat(inputs)

    def items(self, inputs: dict[str, Any]) -> torch.Tensor:
        """Returns the number of tokens with loss; with loss weights, the sum of their weights."""
        weights = predicted_weights(inputs, shifted=self._shifted)
        return (predicted(inputs, shifted=self._shifted) != IGNORED).sum() if weights is None else weights.sum()

    @property
    def _shifted(self) -> bool:
        """True if the logits at each token predict the next one."""
        return not self.model.config.is_encoder_decoder

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Returns the model's own loss in training, and in an evaluation the token loss without auxiliary losses.

        Under sequence parallelism the gradient is scaled, see `scale_gradient`.
        """
        if model.training and self.set_losses and self.item_sets is not None and self.step_weights:
            weight = self.step_weights.peek()
            loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
            losses = (
                outputs["token_losses"]
                if self.chunked
                else item_losses(outputs["logits"], inputs, shifted=self._shifted)
            )
            weights = predicted_weights(inputs, shifted=self._shifted)
            of_items = None if weights is None else weights[predicted(inputs, shifted=self._shifted) != IGNORED]
            self.set_losses.add(losses, self.item_sets.to(losses.device), weight, of_items)
            return (loss, outputs) if return_outputs else loss
        if model.training:
            result = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            return scale_gradient(result, self._gradient_factor) if self._gradient_factor > 1 else result
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if not self.chunked:
            loss = token_loss(outputs["logits"], inputs, shifted=self._shifted)
        return (loss, outputs) if return_outputs else loss

    def model_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> ModelLoss:
        """Returns a micro batch's mean loss, weighted if its tokens have weights, apart from what the model adds to it."""
        if self.sequence_shares > 1 and model.training:
            outputs = model(**inputs, labels=inputs["shift_labels"])
            return ModelLoss(shared_mean(outputs["loss"], inputs["shift_labels"]), outputs)
        if self.chunked:
            outputs = self.chunked.outputs(model, inputs)
            count = inputs["num_items_in_batch"] if "num_items_in_batch" in inputs else self.items(inputs)
            return ModelLoss(outputs["logits"] / count, outputs, self._auxiliary(outputs) if model.training else 0.0)
        unweighted = {name: value for name, value in inputs.items() if name != WEIGHTS}
        if not (model.training and self._adds_auxiliary):
            if WEIGHTS not in inputs:
                return super().model_loss(model, inputs)
            outputs = model(**{name: unweighted[name] for name in unweighted.keys() - {"labels", "shift_labels"}})
            return ModelLoss(token_loss(outputs["logits"], inputs, shifted=self._shifted), outputs)
        loss, outputs, _ = super().model_loss(model, unweighted)
        tokens = token_loss(outputs["logits"], unweighted, shifted=self._shifted)
        weighted = token_loss(outputs["logits"], inputs, shifted=self._shifted) if WEIGHTS in inputs else tokens
        return ModelLoss(weighted, outputs, loss - tokens)

    def _auxiliary(self, outputs: Any) -> torch.Tensor | float:
        """Returns a router's weighted auxiliary losses, which a model adds itself if it gets labels; 0 without a router."""
        config = self.model.config.get_text_config()
        parts = [
            next((getattr(config, name) for name in weights if hasattr(config, name)), 0.0) * loss
            for names, weights in _AUXILIARY.items()
            for name in names
            if (loss := outputs.get(name)) is not None
        ]
        return sum(parts, 0.0)

    def evaluation_loop(self, *arguments: Any, **named: Any) -> EvalLoopOutput:
        """Trainer's loop; also returns the perplexity."""
        output = super().evaluation_loop(*arguments, **named)
        if "eval_loss" in output.metrics:
            output.metrics["eval_perplexity"] = perplexity(output.metrics["eval_loss"])
        return output


def _equal(loss: torch.Tensor, other: torch.Tensor, allowed: torch.Tensor | None = None) -> bool:
    """True if two losses of shape () differ by no more than `allowed`, by default that of rounding."""
    return bool((loss - other).abs() <= (_RELATIVE_DIFFERENCE * other.abs() if allowed is None else allowed))


class ClassTrainer(ReportingTrainer):
    """Trains a classifier; evaluates its loss and accuracy, both means over rows."""

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Returns the model's own loss; in an evaluation also stores the accuracy."""
        weight = self.step_weights.peek() if model.training and self.step_weights else None
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if self.set_losses and self.item_sets is not None and weight is not None:
            losses = cross_entropy(outputs["logits"].detach().float(), inputs["labels"], reduction="none")
            self.set_losses.add(losses, self.item_sets.to(losses.device), weight)
        if not model.training:
            correct = outputs["logits"].argmax(-1) == inputs["labels"].to(outputs["logits"].device)
            self._accuracy = correct.float().mean()
        return (loss, outputs) if return_outputs else loss

    def measures(self, loss: torch.Tensor, inputs: dict[str, Any]) -> Means:
        """Returns the loss and the accuracy."""
        means = super().measures(loss, inputs)
        return means | {"accuracy": (self._accuracy, means["loss"][1])}
