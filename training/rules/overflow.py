"""Rules on models whose activations exceed fp16's largest value, 65,504. They read config.json of a model in a local folder."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from training.config.choices import Precision
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.model_info.config_json import CONFIG_FILE, ModelError, Values, read_config, text_config
from training.rules.conflict import Conflict, rule

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
    precision = machine.best_precision if config.precision is Precision.AUTO else config.precision
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
