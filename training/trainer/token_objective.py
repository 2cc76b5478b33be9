"""The loss over tokens, with the checks of the model before the first step."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from training.batches.collators import Collate, Collator, TargetCollator
from training.batches.layout import RunCollator, base_of, count_flat, cross_row_influence, evaluating
from training.batches.views import IGNORED, WEIGHTS
from training.config.choices import Packing
from training.config.run_config import RunConfig
from training.errors import UserError
from training.ranks.sequence_parallel import shared_mean
from training.trainer.chunked_loss import ChunkedHead, agrees, make_chunked_head, refuse
from training.trainer.evaluation import Means, item_losses, perplexity, predicted, predicted_weights, token_loss
from training.trainer.loss_terms import BATCHES, TOKENS, ItemLosses, LossTerm, LossTerms
from training.trainer.objective import Objective
from training.trainer.reporting_trainer import ReportingTrainer

_TEST_TOKENS = 8
_RELATIVE_DIFFERENCE = 1e-5  # of two ways to compute a loss; an auxiliary loss is larger
_IGNORED_DIFFERENCE = 1e-3  # a model that ignores the count returns the same loss
_ROUNDING = 0.03  # of an auxiliary loss in 16 bits
_AUXILIARY = {  # a model's auxiliary outputs, and how its config names their weight
    ("aux_loss", "encoder_aux_loss", "decoder_aux_loss"): ("router_aux_loss_coef", "aux_loss_coef"),
    ("encoder_z_loss", "decoder_z_loss"): ("router_z_loss_coef",),
}


class TokenObjective(Objective):
    """Trains on tokens: its loss is a mean over the tokens with loss, to which a model may add one for each micro batch.

    `divides_by_items` is True if the model divides its token loss by `num_items_in_batch` (see `_divides_by_count`).
    """

    trainer: ReportingTrainer
    divides_by_items = False
    _adds_auxiliary = False
    """True if the model adds a loss of another kind to its mean over tokens, which is a term of its own."""

    def __init__(self, config: RunConfig, model: Any, **named: Any) -> None:
        super().__init__(config, model, **named)
        assert self.report
        self.chunked = make_chunked_head(config, model, self.report)

    @classmethod
    def collator(cls, config: RunConfig, pad_token_id: int) -> Collate:
        """Pads rows; of an encoder-decoder sources and targets."""
        return TargetCollator(pad_token_id) if config.task.traits.has_encoder else Collator(pad_token_id)

    def placed(self) -> dict[str, str]:
        """Tests the model as it really runs: that flat batches do not mix rows, that the loss in chunks is the model's own, and how
        it normalizes its loss."""
        trainer = self.trainer
        if isinstance(trainer.data_collator, RunCollator) and trainer.data_collator.flat:
            self._check_separation(trainer.data_collator)
        inputs = trainer._prepare_inputs(self._test_batch())
        if self.chunked:
            self._check_chunked_loss(self.chunked, inputs)
        if not self.chunked and trainer.sequence_shares == 1:
            weighted = self.config.weight_field is not None
            self.divides_by_items = not weighted and _divides_by_count(trainer, self._test_model, inputs)
            own, tokens = self._own_losses(inputs)
            self._adds_auxiliary = not self.divides_by_items and not _equal(own, tokens)
        return {name: trainer.context.plan.get(name, "") for name in ("packing", "attention")}

    @property
    def _test_model(self) -> torch.nn.Module:
        """The wrapped model; with torch_compile the plain one, so that nothing is compiled for the test batches."""
        model: torch.nn.Module = self.trainer.model if self.config.torch_compile else self.trainer.model_wrapped
        return model

    @property
    def _vocabulary(self) -> int:
        return int(self.trainer.model.config.get_text_config().vocab_size)

    def _test_batch(self) -> dict[str, torch.Tensor]:
        tokens = np.arange(1, 1 + _TEST_TOKENS, dtype=np.int32) % self._vocabulary
        batch: dict[str, torch.Tensor] = self.trainer.data_collator([{"input_ids": tokens, "labels": tokens}])
        return batch

    def _check_separation(self, collator: RunCollator) -> None:
        config, device, plan = self.config, self.trainer.args.device, self.trainer.context.plan
        distance = cross_row_influence(self._test_model, self._vocabulary, device, plan["precision"])
        if distance < 1:
            return
        name = type(base_of(self.trainer.model)).__name__
        if config.packing is not Packing.AUTO:
            message = f"does not fit {name}: it mixes the rows of a batch without padding."
            raise UserError("packing", config.packing.value, message, "Set packing to auto or none.")
        collator.pad()
        plan["packing"] = Packing.NONE.value
        self.trainer.context.report.warn(f"{name} mixes the rows of a batch without padding, so rows are padded.")

    def _check_chunked_loss(self, chunked: ChunkedHead, inputs: dict[str, Any]) -> None:
        """Compares the loss in chunks with the model's own, on a batch of a few tokens; every rank takes part.

        Raises:
            UserError: they differ, and the configuration demands a chunked loss.
        """
        plain, tokens = self._own_losses(inputs)
        chunked.place()
        with evaluating(self._test_model):
            outputs = chunked.outputs(self._test_model, inputs)
            loss = outputs["logits"] / self.items(inputs)[TOKENS]
        config, report = self.config, self.trainer.context.report
        added, own = sum((one.value for one in self._auxiliary(outputs)), torch.zeros_like(plain)), plain - tokens
        if not _equal(tokens + added, plain, allowed=_RELATIVE_DIFFERENCE * tokens.abs() + _ROUNDING * own.abs()):
            reason = f"it adds {float(own):.4g} to its loss over tokens, of which only {float(added):.4g} is known"
        elif agrees(loss + added, plain, self.trainer.context.plan["precision"]):
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
        return outputs["loss"], self._mean(outputs, inputs)

    def size(self, batch: dict[str, Any]) -> tuple[torch.Tensor, int | torch.Tensor]:
        """Counts tokens without padding, and rows. A flat batch has no mask and no padding; its rows begin at position 0."""
        return super().size(batch) if "attention_mask" in batch else count_flat(batch)

    def items(self, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Returns the number of tokens with loss; with loss weights, the sum of their weights."""
        weights = predicted_weights(batch, shifted=self._shifted)
        labeled = predicted(batch, shifted=self._shifted) != IGNORED
        return {TOKENS: labeled.sum() if weights is None else weights.sum()}

    @property
    def _shifted(self) -> bool:
        """True if the logits at each token predict the next one."""
        return not self.trainer.model.config.is_encoder_decoder

    def loss(self, model: torch.nn.Module, batch: dict[str, Any]) -> LossTerms:
        """Returns the mean over tokens, weighted if they have weights, and what the model adds to it."""
        if self.trainer.sequence_shares > 1:
            loss = model(**batch, labels=batch["shift_labels"])["loss"]
            return LossTerms((LossTerm(shared_mean(loss, batch["shift_labels"]), TOKENS),))
        outputs, terms = self._chunked_terms(model, batch) if self.chunked else self._terms(model, batch)
        return LossTerms(terms, lambda: self._of_items(outputs, batch))

    def _chunked_terms(self, model: torch.nn.Module, batch: dict[str, Any]) -> tuple[Any, tuple[LossTerm, ...]]:
        assert self.chunked
        outputs, step = self.chunked.outputs(model, batch), self.trainer.step_weights
        total = outputs["logits"]
        loss = LossTerm(total / step.items_per_batch, BATCHES) if step else LossTerm(total / self._count(batch), TOKENS)
        return outputs, (loss, *self._auxiliary(outputs))

    def _terms(self, model: torch.nn.Module, batch: dict[str, Any]) -> tuple[Any, tuple[LossTerm, ...]]:
        step = self.trainer.step_weights
        if self.divides_by_items and step:
            outputs = model(**batch, num_items_in_batch=step.items_per_batch)
            return outputs, (LossTerm(outputs["loss"], BATCHES),)
        if not self._adds_auxiliary:
            outputs = self._forward(model, batch)
            loss = self._mean(outputs, batch) if WEIGHTS in batch else outputs["loss"]
            return outputs, (LossTerm(loss, TOKENS),)
        unweighted = {name: value for name, value in batch.items() if name != WEIGHTS}
        outputs = model(**unweighted)
        tokens = self._mean(outputs, unweighted)
        loss = self._mean(outputs, batch) if WEIGHTS in batch else tokens
        return outputs, (LossTerm(loss, TOKENS), LossTerm(outputs["loss"] - tokens, BATCHES))

    def _forward(self, model: torch.nn.Module, batch: dict[str, Any]) -> Any:
        """Returns the model's outputs, without its own loss if tokens have weights."""
        if WEIGHTS not in batch:
            return model(**batch)
        return model(**{name: batch[name] for name in batch.keys() - {WEIGHTS, "labels", "shift_labels"}})

    def held_out(self, model: torch.nn.Module, batch: dict[str, Any]) -> Means:
        """Returns the mean over tokens, without what a model adds to it."""
        if self.chunked:
            loss = self.chunked.outputs(model, batch)["logits"] / self._count(batch)
        else:
            loss = self._mean(self._forward(model, batch), batch)
        return {"loss": (loss, self._count(batch))}

    def of_means(self, means: Mapping[str, float]) -> dict[str, float]:
        """Returns the perplexity."""
        return {"perplexity": perplexity(means["loss"])}

    def _count(self, batch: dict[str, Any]) -> torch.Tensor:
        return self.items(batch)[TOKENS]

    def _mean(self, outputs: Any, batch: dict[str, Any]) -> torch.Tensor:
        return token_loss(outputs["logits"], batch, shifted=self._shifted)

    def _of_items(self, outputs: Any, batch: dict[str, Any]) -> ItemLosses:
        """Returns the loss of each token with loss."""
        losses = (
            outputs["token_losses"] if self.chunked else item_losses(outputs["logits"], batch, shifted=self._shifted)
        )
        weights = predicted_weights(batch, shifted=self._shifted)
        labeled = predicted(batch, shifted=self._shifted) != IGNORED
        return ItemLosses(losses, None if weights is None else weights[labeled])

    def _auxiliary(self, outputs: Any) -> list[LossTerm]:
        """Returns a router's auxiliary losses, which a model adds itself if it gets labels; empty without a router."""
        config = self.trainer.model.config.get_text_config()
        return [
            LossTerm(loss, BATCHES, next((getattr(config, name) for name in weights if hasattr(config, name)), 0.0))
            for names, weights in _AUXILIARY.items()
            for name in names
            if (loss := outputs.get(name)) is not None
        ]


def _equal(loss: torch.Tensor, other: torch.Tensor, allowed: torch.Tensor | None = None) -> bool:
    """True if two losses of shape () differ by no more than `allowed`, by default that of rounding."""
    return bool((loss - other).abs() <= (_RELATIVE_DIFFERENCE * other.abs() if allowed is None else allowed))


def _divides_by_count(trainer: ReportingTrainer, model: torch.nn.Module, inputs: dict[str, Any]) -> bool:
    """True if the model divides its loss by `num_items_in_batch`. Runs two forward passes on `inputs`, on every rank."""
    if not trainer.takes_num_items:
        return False
    loss_of_one, loss_of_two = (
        float(_own_loss(model, inputs | {"num_items_in_batch": torch.tensor(count, device=trainer.args.device)}))
        for count in (1.0, 2.0)
    )
    return abs(loss_of_one - loss_of_two) > _IGNORED_DIFFERENCE * abs(loss_of_one)


def _own_loss(model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
    """Returns the loss that the model computes itself, without gradient and dropout, of shape ()."""
    with evaluating(model):
        loss: torch.Tensor = model(**inputs)["loss"]
        return loss
