"""Forecasts every strategy with every method on a GPU, or gives the reason why a combination is refused."""

from dataclasses import dataclass
from typing import Any

from training.config.fields import parse
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.forecast.forecast import Forecast, estimate
from training.forecast.formula.activations import Batch
from training.forecast.gpus import Card
from training.model_info.shape import ModelShape
from training.rules import check


@dataclass(frozen=True)
class Combination:
    """A strategy with a method: the changed settings, and the forecast or the reason why it is refused."""

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


def strategy_table(
    config: RunConfig, shape: ModelShape, card: Card, *, batch: Batch, host_bytes: int | None = None
) -> list[Combination]:
    """Every strategy with every method, with the other settings of the configuration."""
    combinations = []
    for label, (strategy, optimizer, parameters) in _STRATEGIES.items():
        for method, settings in _METHODS.items():
            alone = strategy == "single"
            count, machines = (1, 1) if alone else (config.num_processes, config.num_machines)
            changes: dict[str, Any] = {
                "strategy": strategy,
                "num_processes": count,
                "num_machines": machines,
                **settings,
            }
            changes |= {"offload_optimizer": optimizer, "offload_param": parameters}
            tried = parse(config.model_dump(mode="json") | changes)
            machine = Machine(
                "cuda", count, [card.label] * count, [card.memory_bytes] * count, card.bf16, most_machines=machines
            )
            refused = next((conflict.reason for conflict in check(tried, machine) if conflict.blocking), "")
            expected = None if refused else estimate(tried, shape, card=card, batch=batch, host_limit_bytes=host_bytes)
            combinations.append(Combination(label, method, changes, expected, refused))
    return combinations
