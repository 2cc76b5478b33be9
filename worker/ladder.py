"""Every strategy with every method: what each takes of a card, or why it is refused."""

from dataclasses import dataclass
from typing import Any

from training.activations import Batch
from training.cards import Card
from training.config import RunConfig
from training.fields import parse
from training.memory import Forecast, forecast
from training.model_shape import ModelShape
from training.rules import Machine, check


@dataclass(frozen=True)
class Rung:
    """A strategy with a method: its forecast, the changes to the settings that choose it, or why it is refused."""

    strategy: str
    method: str
    changes: dict[str, Any]
    forecast: Forecast | None
    refused: str = ""


_STRATEGIES = {
    "one device": ("single", "none", "none"),
    "DDP": ("ddp", "none", "none"),
    "ZeRO-1": ("zero1", "none", "none"),
    "ZeRO-2": ("zero2", "none", "none"),
    "ZeRO-2 + optimizer offload": ("zero2", "cpu", "none"),
    "ZeRO-3": ("zero3", "none", "none"),
    "ZeRO-3 + offload": ("zero3", "cpu", "cpu"),
    "FSDP": ("fsdp", "none", "none"),
    "FSDP + offload": ("fsdp", "none", "cpu"),
}
_METHODS = {
    "full": {"method": "full", "quantization": "none"},
    "LoRA": {"method": "lora", "quantization": "none"},
    "QLoRA 8-bit": {"method": "qlora", "quantization": "8bit"},
    "QLoRA 4-bit": {"method": "qlora", "quantization": "4bit"},
}


def ladder(
    config: RunConfig, shape: ModelShape, card: Card, *, batch: Batch, host_bytes: int | None = None
) -> list[Rung]:
    """Every strategy with every method, for the configuration's number of processes and its other settings."""
    rungs = []
    for place, (strategy, optimizer, parameters) in _STRATEGIES.items():
        for method, how in _METHODS.items():
            count = 1 if strategy == "single" else config.num_processes
            changes: dict[str, Any] = {"strategy": strategy, "num_processes": count, **how}
            changes |= {"offload_optimizer": optimizer, "offload_param": parameters}
            tried = parse(config.model_dump(mode="json") | changes)
            machine = Machine("cuda", count, [card.label] * count, [card.memory_bytes] * count, card.bf16)
            against = next((one.reason for one in check(tried, machine) if one.blocking), "")
            found = None if against else forecast(tried, shape, card=card, batch=batch, host_limit_bytes=host_bytes)
            rungs.append(Rung(place, method, changes, found, against))
    return rungs
