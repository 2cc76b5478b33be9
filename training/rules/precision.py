"""Rules on number formats. One reads config.json of a model in a local folder: some exceed fp16's largest value, 65,504."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from training.config.choices import Method, Precision
from training.config.machine import Machine
from training.config.optimizer_name import OptimizerName
from training.config.run_config import RunConfig
from training.model_info.config_json import CONFIG_FILE, ModelError, Values, read_config, text_config
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


_T5 = "T5's feed-forward layers do (huggingface/transformers issues 4586, 5651 and 9295)"
_GEMMA = "Gemma's activations do from Gemma 2 on (unsloth's reports on Gemma 3 and 3n)"
OVERFLOWS = {
    **dict.fromkeys(("t5", "mt5", "umt5", "longt5", "switch_transformers", "pix2struct"), _T5),
    **dict.fromkeys(("gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text"), _GEMMA),
}
"""Architectures (model_type) that are known to exceed fp16's range, each with what does and who reported it. BLOOM is none of
them: its models up to 7.1B were trained in fp16 (bigscience/bloom-560m, discussion 14), and that of 176B says bfloat16."""


@rule
def fp16_overflows_with_some_models(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    precision = machine.precision_of(config.precision)
    if precision is not Precision.FP16 or machine.kind == "cpu":
        return
    values = _config(config.model)
    known = OVERFLOWS.get(str(values.get("model_type"))) or OVERFLOWS.get(str(text_config(values).get("model_type")))
    if known:
        reason = f"Very likely, the loss will be NaN: fp16 ends at 65,504, and {known}."
    elif _stored(values) == "bfloat16":
        reason = (
            "The loss may become NaN: config.json says that the model was trained in bf16, whose values may exceed fp16's "
            "largest, 65,504."
        )
    else:
        return
    best = "bf16" if machine.bf16 else "fp32"
    yield Conflict(
        ("precision", "model"),
        reason,
        f"Set precision to {best}{'' if machine.bf16 else ', since this GPU does not support bf16'}.",
        {"precision": best},
        blocking=False,
    )


def _stored(values: Values) -> str:
    """The number format of the weights, by either of its names."""
    for source in (values, text_config(values)):
        if named := source.get("dtype") or source.get("torch_dtype"):
            return str(named).removeprefix("torch.")
    return ""


def _config(model: str) -> Values:
    file = Path(model) / CONFIG_FILE
    try:
        return _read(file, file.stat().st_mtime_ns)
    except (OSError, ValueError, ModelError):
        return {}


@lru_cache(maxsize=32)
def _read(file: Path, changed: int) -> Values:
    """The file's values; `changed`, its time of change, makes them be read again."""
    return read_config(file)
