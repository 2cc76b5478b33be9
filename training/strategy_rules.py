"""The rules of strategies, registered like those in rules.py. Nothing here imports torch."""

from collections.abc import Iterator

from training.config import Quantization, RunConfig, Strategy
from training.rules import Conflict, Machine, rule


@rule
def eight_bit_weights_are_not_sharded(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.quantized is Quantization.INT8 and config.strategy in (Strategy.FSDP, Strategy.ZERO3):
        yield Conflict(
            ("quantization", "strategy"),
            "8-bit weights are not sharded: FSDP parts them from their scales, and bitsandbytes holds on to all of them "
            "under ZeRO-3.",
            "Set quantization to 4bit, or strategy to ddp or zero2.",
            {"quantization": "4bit"},
        )
