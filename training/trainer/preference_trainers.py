"""trl's preference trainers on Lathe's tokenized rows, with Lathe's reports."""

from contextlib import AbstractContextManager
from typing import Any, ClassVar

import datasets
import torch
import torch.distributed as dist
from datasets import Dataset
from transformers import TrainerState
from trl.experimental.orpo.orpo_trainer import ORPOTrainer
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.kto_trainer import KTOTrainer
from trl.trainer.reward_trainer import RewardTrainer
from trl.trainer.utils import use_adapter

from training.ranks.distributed import several_ranks
from training.trainer.evaluation import Means
from training.trainer.global_batch import ModelLoss, StepWeights, weighted_router_loss
from training.trainer.reference import add_noise_with_gradient_only, begins_as_reference, check_reference
from training.trainer.reporting_trainer import ReportingTrainer

datasets.disable_progress_bars()


class PreferenceTrainer(ReportingTrainer):
    """Undoes what trl's constructors do to data and weights, which Lathe has already prepared."""

    placeholder: ClassVar[dict[str, Any]] = {"input_ids": [0]}
    """A row for trl's constructor, which accepts only a Dataset."""

    def __init__(self, *, model: Any, **arguments: Any) -> None:
        dtypes = {name: parameter.dtype for name, parameter in model.named_parameters()}
        super().__init__(model=model, **arguments)
        _restore(self.model, dtypes)
        self.accelerator.gather = self.accelerator.gather_for_metrics = gather_rows

    def before_first_step(self) -> None:
        """Also checks that a new adapter does not change the model."""
        config = self.context.config
        if begins_as_reference(config):
            check_reference(config, self.model, self._as_reference, self.context.plan["precision"])
        super().before_first_step()

    def on_model_placed(self, placement: dict[str, Any], state: TrainerState) -> None:
        """Also keeps the noise of NEFTune out of the reference."""
        add_noise_with_gradient_only(self._unwrapped)
        super().on_model_placed(placement, state)

    def _as_reference(self) -> AbstractContextManager[Any]:
        """The context in which trl computes the reference of an adapter."""
        model: Any = self._unwrapped
        context: AbstractContextManager[Any] = use_adapter(model, "ref" if "ref" in model.peft_config else None)
        return context

    def placeholder_rows(self, train: Any, held_out: Any) -> dict[str, Any]:  # noqa: ARG002 - trl would tokenize `train`
        rows = Dataset.from_list([self.placeholder])
        return {"train_dataset": rows, "eval_dataset": rows if held_out else None}

    def count(self, inputs: dict[str, Any]) -> tuple[torch.Tensor, int]:
        """Counts the tokens of both answers; a pair is one row."""
        return inputs["attention_mask"].sum(), len(inputs["attention_mask"]) // 2

    def model_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> ModelLoss:
        """Returns trl's loss, whose router loss gets the weight of the micro batch in place of that of its items."""
        with weighted_router_loss(self):
            return super().model_loss(model, inputs)

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        return dataset

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """Does nothing: Lathe writes its own card."""

    def _send_telemetry(self) -> None:
        """Does nothing: Lathe sends no data about a run."""


def gather_rows(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """Concatenates the tensors of all ranks in their first dimension, whose size may differ between ranks.

    accelerate's `gather_for_metrics` needs equal sizes, which the batches at the end of an epoch do not have.
    """
    if not several_ranks():
        return tensor
    rows = tensor.detach().reshape(1) if tensor.ndim == 0 else tensor.detach()
    sizes = [torch.zeros(1, dtype=torch.long, device=rows.device) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(rows)], device=rows.device))
    counts = [int(size) for size in sizes]
    padded = rows.new_zeros((max(counts), *rows.shape[1:]))
    padded[: len(rows)] = rows
    gathered = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(gathered, padded)
    return torch.cat([part[:count] for part, count in zip(gathered, counts, strict=True)])


def _restore(model: Any, dtypes: dict[str, torch.dtype]) -> None:
    """Restores the dtypes of the weights, and deletes trl's reference adapter where the base model is the reference.

    trl casts the adapter of a quantized model to bf16. An adapter whose initialization changes nothing needs no reference copy.
    """
    for name, parameter in model.named_parameters():
        if parameter.dtype != dtypes.get(name, parameter.dtype):
            parameter.data = parameter.data.to(dtypes[name])
    adapters = getattr(model, "peft_config", {})
    if "ref" in adapters and getattr(adapters["default"], "init_lora_weights", True) in (True, "gaussian"):
        model.delete_adapter("ref")


class DPORun(PreferenceTrainer, DPOTrainer):  # type: ignore[misc]
    """Direct preference optimization (Rafailov et al. 2023)."""


class KTORun(PreferenceTrainer, KTOTrainer):  # type: ignore[misc]
    """Kahneman-Tversky optimization (Ethayarajh et al. 2024)."""

    placeholder: ClassVar[dict[str, Any]] = {"input_ids": [0], "label": True}

    def _compute_kl_logps(self, model: Any, batch: dict[str, Any]) -> torch.Tensor | None:
        """Scales trl's values so that its KL estimate, a mean over ranks of means over rows, is the mean over all rows."""
        logps: torch.Tensor | None = super()._compute_kl_logps(model, batch)  # type: ignore[no-untyped-call]
        if logps is None or self.args.world_size == 1:
            return logps
        rows = logps.new_tensor(0.0 if self.repeats_a_row else len(logps))
        total = rows.clone()
        dist.all_reduce(total)
        share: torch.Tensor = rows * self.args.world_size / total.clamp(min=1)
        return logps * share

    def count(self, inputs: dict[str, Any]) -> tuple[torch.Tensor, int]:
        """Counts the tokens of the answers, without the mismatched pairs of the KL term."""
        return inputs["attention_mask"].sum(), len(inputs["attention_mask"])


class ORPORun(PreferenceTrainer, ORPOTrainer):  # type: ignore[misc]
    """Odds ratio preference optimization (Hong et al. 2024)."""

    placeholder: ClassVar[dict[str, Any]] = {"prompt": "a", "chosen": "b", "rejected": "c"}
    _token_step: StepWeights | None = None

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.use_dpo_data_collator = True  # Lathe's collator makes the same batches as trl's

    def count(self, inputs: dict[str, Any]) -> tuple[torch.Tensor, int]:
        """Counts the tokens of both answers; a pair is one row."""
        chosen, rejected = inputs["chosen_attention_mask"], inputs["rejected_attention_mask"]
        return chosen.sum() + rejected.sum(), len(chosen)

    def get_batch_samples(self, *arguments: Any) -> tuple[list[Any], None]:
        """Also weights the micro batches by the tokens of their chosen answers, for the first part of the loss."""
        batches, _ = super().get_batch_samples(*arguments)
        self._token_step = self.weigh([_predicted_tokens(batch) for batch in batches]) if batches else None
        return batches, None

    def concatenated_forward(self, model: Any, batch: dict[str, Any]) -> Any:
        """trl's outputs. The fifth, a mean over the tokens of chosen answers, is reweighted from pairs to tokens.

        The others are means over pairs, and the micro batch is weighted by its pairs afterwards.
        """
        parts: list[Any] = list(super().concatenated_forward(model, batch))
        self._token_loss = parts[4].detach()
        if model.training and self._token_step is not None and self.step_weights is not None:
            pairs = self.step_weights.peek()
            parts[4] = parts[4] * torch.where(pairs > 0, self._token_step.next() / pairs, 0.0)
        return tuple(parts)

    def measures(self, loss: torch.Tensor, inputs: dict[str, Any]) -> Means:
        """Returns the two parts of the loss, over tokens and over pairs."""
        pairs = self._token_loss.new_tensor(len(inputs["chosen_input_ids"]))
        tokens = _predicted_tokens(inputs)
        return {"loss": (loss - self._token_loss, pairs), "loss_of_tokens": (self._token_loss, tokens)}


def _predicted_tokens(batch: dict[str, Any]) -> torch.Tensor:
    count: torch.Tensor = batch["chosen_attention_mask"][:, 1:].sum()
    return count


class RewardRun(PreferenceTrainer, RewardTrainer):  # type: ignore[misc]
    """A reward model on pairs (Bradley-Terry)."""
