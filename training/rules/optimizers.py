"""Rules on optimizers and the weights that they support."""

from collections.abc import Iterator

from training.config.choices import Offload, OptimizerName, Precision, Strategy
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.rules.conflict import Conflict, rule

SUPPORT_FSDP = {OptimizerName.ADAMW, OptimizerName.ADAMW_ANYPRECISION, OptimizerName.MUON, OptimizerName.SGD}
"""Optimizers that support DTensors, as found by running each: bitsandbytes' do not, Adafactor mixes them with plain tensors,
and torchao's fail if a matrix is not sharded evenly."""


@rule
def muon_needs_whole_matrices(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.optimizer is not OptimizerName.MUON:
        return
    if config.strategy.zero_stage:
        yield Conflict(
            ("optimizer", "strategy"),
            "ZeRO gives the optimizer flat shards of the weights, and Muon orthogonalizes complete matrices.",
            "Set optimizer to adamw, or strategy to ddp.",
            {"optimizer": "adamw"},
        )
    elif config.method.adapts:
        yield Conflict(
            ("optimizer", "method"),
            "Muon is designed for full weight matrices; no benefit is known for the low-rank matrices of an adapter.",
            "Set optimizer to adamw, or method to full.",
            {"optimizer": "adamw"},
            blocking=False,
        )


@rule
def anyprecision_trains_bf16_weights(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.optimizer is not OptimizerName.ADAMW_ANYPRECISION:
        return
    precision = machine.best_precision if config.precision is Precision.AUTO else config.precision
    if precision is Precision.FP16:
        yield Conflict(
            ("optimizer", "precision"),
            "adamw_anyprecision stores the weights in the compute format, and fp16 loss scaling needs fp32 weights.",
            "Set optimizer to adamw, or precision to bf16 if the GPU supports it.",
            {"optimizer": "adamw"},
        )
    elif precision is Precision.FP32 or config.method.adapts or config.strategy.zero_stage:
        yield Conflict(
            ("optimizer", "precision", "method"),
            "adamw_anyprecision saves memory only if all weights train in bf16. With fp32 weights, adapters or ZeRO it works "
            "as adamw does.",
            "Set optimizer to adamw, or method to full, precision to bf16 and strategy to single or ddp.",
            {"optimizer": "adamw"},
            blocking=False,
        )


@rule
def some_optimizers_do_not_support_fsdp(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.strategy is Strategy.FSDP and config.optimizer not in SUPPORT_FSDP:
        yield Conflict(
            ("optimizer", "strategy"),
            f"{config.optimizer.value} does not support FSDP's sharded weights.",
            "Set optimizer to adamw, whose state FSDP shards, or strategy to zero2.",
            {"optimizer": "adamw"},
        )


@rule
def paged_optimizers_need_gpu_memory(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.optimizer.paged and (machine.kind == "cpu" or config.offload_optimizer is not Offload.NONE):
        cause = (
            "this machine has no GPU" if machine.kind == "cpu" else "offload_optimizer keeps the state in host memory"
        )
        yield Conflict(
            ("optimizer",),
            f"A paged optimizer has no effect: {cause}.",
            "Set optimizer to adamw_8bit.",
            {"optimizer": "adamw_8bit"},
            blocking=False,
        )


@rule
def adafactor_needs_complete_matrices(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.optimizer is OptimizerName.ADAFACTOR and config.strategy.zero_stage:
        yield Conflict(
            ("optimizer", "strategy"),
            "ZeRO gives the optimizer flat shards of the weights, for which adafactor stores a full second moment.",
            "Set optimizer to adamw_8bit, or strategy to ddp.",
            {"optimizer": "adamw_8bit"},
            blocking=False,
        )
