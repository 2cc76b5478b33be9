"""trl's trainers of preferences, given rows that are tokenized already and told to report like every other."""

from typing import Any, ClassVar

import datasets
import torch
import torch.distributed as dist
from datasets import Dataset
from trl.experimental.orpo.orpo_trainer import ORPOTrainer
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.kto_trainer import KTOTrainer
from trl.trainer.reward_trainer import RewardTrainer

from training.evaluation import Means
from training.global_batch import StepWeights
from training.reporting import Reporting

datasets.disable_progress_bars()


class PreferenceTrainer(Reporting):
    """What trl does when it is made, beside making the trainer, is undone here: Lathe has prepared data and weights."""

    # Something for trl to look at: it takes no rows but those of a Dataset of its own.
    placeholder: ClassVar[dict[str, Any]] = {"input_ids": [0]}

    def __init__(self, *, model: Any, **arguments: Any) -> None:
        formats = {name: parameter.dtype for name, parameter in model.named_parameters()}
        super().__init__(model=model, **arguments)
        _restore(self.model, formats)
        self.accelerator.gather = self.accelerator.gather_for_metrics = gather_rows

    def shown_rows(self, train: Any, held_out: Any) -> dict[str, Any]:  # noqa: ARG002 - trl tokenizes what it is shown
        rows = Dataset.from_list([self.placeholder])
        return {"train_dataset": rows, "eval_dataset": rows if held_out else None}

    def count(self, inputs: dict[str, Any]) -> tuple[torch.Tensor, int]:
        """Tokens of both answers; a pair is one row."""
        return inputs["attention_mask"].sum(), len(inputs["attention_mask"]) // 2

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        return dataset

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """Lathe writes a card of its own."""

    def _send_telemetry(self) -> None:
        """Nothing about a run leaves the machine."""


def gather_rows(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """The tensors of all ranks, one after another in their first dimension; ranks may have different numbers of rows.

    accelerate's `gather_for_metrics` takes batches of one size alone, and at the end of an epoch they are not.
    """
    if not (dist.is_initialized() and dist.get_world_size() > 1):
        return tensor
    rows = tensor.detach().reshape(1) if tensor.ndim == 0 else tensor.detach()
    sizes = [torch.zeros(1, dtype=torch.long, device=rows.device) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(rows)], device=rows.device))
    counts = [int(size) for size in sizes]
    room = rows.new_zeros((max(counts), *rows.shape[1:]))
    room[: len(rows)] = rows
    found = [torch.empty_like(room) for _ in counts]
    dist.all_gather(found, room)
    return torch.cat([part[:count] for part, count in zip(found, counts, strict=True)])


def _restore(model: Any, formats: dict[str, torch.dtype]) -> None:
    """Weights in the format they came in (trl turns those of an adapter on a quantised model into bf16), without trl's copy
    of the adapter as the reference, where the base model is that: an adapter that begins by changing nothing."""
    for name, parameter in model.named_parameters():
        if parameter.dtype != formats.get(name, parameter.dtype):
            parameter.data = parameter.data.to(formats[name])
    adapters = getattr(model, "peft_config", {})
    if "ref" in adapters and getattr(adapters["default"], "init_lora_weights", True) in (True, "gaussian"):
        model.delete_adapter("ref")


class DPORun(PreferenceTrainer, DPOTrainer):  # type: ignore[misc]
    """Direct preference optimization (Rafailov et al. 2023)."""


class KTORun(PreferenceTrainer, KTOTrainer):  # type: ignore[misc]
    """Kahneman-Tversky optimization (Ethayarajh et al. 2024)."""

    placeholder: ClassVar[dict[str, Any]] = {"input_ids": [0], "label": True}

    def _compute_kl_logps(self, model: Any, batch: dict[str, Any]) -> torch.Tensor | None:
        """trl's. Its KL estimate is a mean over ranks of means over rows; scaled so, it is the mean over the rows of all."""
        logps: torch.Tensor | None = super()._compute_kl_logps(model, batch)  # type: ignore[no-untyped-call]
        if logps is None or self.args.world_size == 1:
            return logps
        rows = logps.new_tensor(0.0 if self.repeats_a_row else len(logps))
        total = rows.clone()
        dist.all_reduce(total)
        share: torch.Tensor = rows * self.args.world_size / total.clamp(min=1)
        return logps * share

    def count(self, inputs: dict[str, Any]) -> tuple[torch.Tensor, int]:
        """Tokens of the answers themselves."""
        return inputs["attention_mask"].sum(), len(inputs["attention_mask"])


class ORPORun(PreferenceTrainer, ORPOTrainer):  # type: ignore[misc]
    """Odds ratio preference optimization (Hong et al. 2024)."""

    placeholder: ClassVar[dict[str, Any]] = {"prompt": "a", "chosen": "b", "rejected": "c"}
    _token_step: StepWeights | None = None

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.use_dpo_data_collator = True  # its own collator makes the same batches as Lathe's

    def count(self, inputs: dict[str, Any]) -> tuple[torch.Tensor, int]:
        """Tokens of both answers; a pair is one row."""
        chosen, rejected = inputs["chosen_attention_mask"], inputs["rejected_attention_mask"]
        return chosen.sum() + rejected.sum(), len(chosen)

    def get_batch_samples(self, *arguments: Any) -> tuple[list[Any], None]:
        """Also weighs the micro batches by the tokens of their chosen answers, for the first part of the loss."""
        batches, _ = super().get_batch_samples(*arguments)
        self._token_step = self.weigh([_predicted_tokens(batch) for batch in batches]) if batches else None
        return batches, None

    def concatenated_forward(self, model: Any, batch: dict[str, Any]) -> Any:
        """trl's, whose fifth part is the mean over the tokens of chosen answers. The others are means over pairs, by which the
        micro batch is weighted afterwards."""
        parts: list[Any] = list(super().concatenated_forward(model, batch))
        self._token_loss = parts[4].detach()
        if model.training and self._token_step is not None and self.step_weights is not None:
            pairs = self.step_weights.peek()
            parts[4] = parts[4] * torch.where(pairs > 0, self._token_step.next() / pairs, 0.0)
        return tuple(parts)

    def measures(self, loss: torch.Tensor, inputs: dict[str, Any]) -> Means:
        """The two parts of the loss, of tokens and of pairs."""
        pairs = self._token_loss.new_tensor(len(inputs["chosen_input_ids"]))
        tokens = _predicted_tokens(inputs)
        return {"loss": (loss - self._token_loss, pairs), "loss_of_tokens": (self._token_loss, tokens)}


def _predicted_tokens(batch: dict[str, Any]) -> torch.Tensor:
    predicted: torch.Tensor = batch["chosen_attention_mask"][:, 1:].sum()
    return predicted


class RewardRun(PreferenceTrainer, RewardTrainer):  # type: ignore[misc]
    """A reward model trained on pairs (Bradley-Terry)."""
