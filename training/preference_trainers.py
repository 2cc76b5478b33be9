"""trl's trainers of preferences, given rows that are tokenized already and told to report like every other."""

from typing import Any, ClassVar

import datasets
import torch
from datasets import Dataset
from trl.experimental.orpo.orpo_trainer import ORPOTrainer
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.kto_trainer import KTOTrainer
from trl.trainer.reward_trainer import RewardTrainer

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


def _restore(model: Any, formats: dict[str, torch.dtype]) -> None:
    """Weights in the format they came in (trl turns those of an adapter on a quantised model into bf16), without trl's copy
    of the adapter as the reference, where the base model is that: an adapter that begins by changing nothing."""
    for name, parameter in model.named_parameters():
        if parameter.dtype != formats.get(name, parameter.dtype):
            parameter.data = parameter.data.to(formats[name])
    adapters = getattr(model, "peft_config", {})
    if "ref" in adapters and getattr(adapters["default"], "init_lora_weights", True) in (True, "gaussian"):
        model.delete_adapter("ref")


class DPORun(PreferenceTrainer, DPOTrainer):
    """Direct preference optimization (Rafailov et al. 2023)."""


class KTORun(PreferenceTrainer, KTOTrainer):
    """Kahneman-Tversky optimization (Ethayarajh et al. 2024)."""

    placeholder: ClassVar[dict[str, Any]] = {"input_ids": [0], "label": True}

    def count(self, inputs: dict[str, Any]) -> tuple[torch.Tensor, int]:
        """Tokens of the answers themselves."""
        return inputs["attention_mask"].sum(), len(inputs["attention_mask"])


class ORPORun(PreferenceTrainer, ORPOTrainer):
    """Odds ratio preference optimization (Hong et al. 2024)."""

    placeholder: ClassVar[dict[str, Any]] = {"prompt": "a", "chosen": "b", "rejected": "c"}

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.use_dpo_data_collator = True  # its own collator makes the same batches as Lathe's

    def count(self, inputs: dict[str, Any]) -> tuple[torch.Tensor, int]:
        """Tokens of both answers; a pair is one row."""
        chosen, rejected = inputs["chosen_attention_mask"], inputs["rejected_attention_mask"]
        return chosen.sum() + rejected.sum(), len(chosen)


class RewardRun(PreferenceTrainer, RewardTrainer):
    """A reward model trained on pairs (Bradley-Terry)."""
