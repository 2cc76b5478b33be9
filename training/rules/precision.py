"""Rules on the number formats of weights and products."""

from collections.abc import Iterator

from training.config.choices import Method, OptimizerName, Precision
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.rules.conflict import Conflict, rule


@rule
def the_device_must_support_the_precision(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.precision is Precision.FP16 and machine.kind == "cpu":
        reason = "fp16 needs a GPU: loss scaling does not run on CPU."
    elif config.precision is Precision.BF16 and machine.kind == "cuda" and not machine.bf16:
        reason = f"{machine.names[0] if machine.names else 'This GPU'} does not support bf16."
    else:
        return
    best = machine.best_precision.value
    yield Conflict(("precision",), reason, f"Set precision to {best}, or auto.", {"precision": best})


@rule
def trained_weights_need_enough_precision(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    precision = config.weights_precision
    if precision is Precision.AUTO:
        return
    if config.strategy.zero_stage is not None:
        yield Conflict(
            ("weights_precision", "strategy"),
            "DeepSpeed converts weights to the compute precision, and keeps an fp32 copy of trained ones.",
            "Set weights_precision to auto.",
            {"weights_precision": "auto"},
            blocking=False,
        )
    elif precision is Precision.FP16 and config.method is Method.FULL:
        yield Conflict(
            ("weights_precision", "method"),
            "fp16 loss scaling needs trained weights in fp32.",
            "Set weights_precision to auto.",
            {"weights_precision": "auto"},
        )
    elif precision is Precision.BF16 and config.method is Method.FULL and config.optimizer is OptimizerName.ADAMW:
        yield Conflict(
            ("weights_precision", "optimizer"),
            "bf16 weights lose updates smaller than 1/256 of a weight: most updates at usual learning rates.",
            "Set optimizer to adamw_anyprecision, which compensates the rounding, or weights_precision to auto.",
            {"optimizer": "adamw_anyprecision"},
            blocking=False,
        )


@rule
def tf32_needs_ampere(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.tf32 and (machine.kind == "cpu" or not machine.bf16):  # bf16 and TF32 both came with Ampere
        device = "A CPU" if machine.kind == "cpu" else machine.names[0] if machine.names else "This GPU"
        on_gpu = machine.kind == "cuda"
        yield Conflict(("tf32",), f"{device} has no TF32.", "Set tf32 to false.", {"tf32": False}, blocking=on_gpu)
