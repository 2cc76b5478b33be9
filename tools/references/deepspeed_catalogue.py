"""`python -m tools.references.deepspeed_catalogue` writes deepspeed_keys.json from the installed DeepSpeed."""

import importlib
import json
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

TARGET = Path(__file__).parents[2] / "training" / "deepspeed_file" / "deepspeed_keys.json"

# Sections whose keys DeepSpeed declares as pydantic models, each with its module and class.
_MODELS = {
    "zero_optimization": "deepspeed.runtime.zero.config:DeepSpeedZeroConfig",
    "fp16": "deepspeed.runtime.precision_config:DeepSpeedFP16Config",
    "bf16": "deepspeed.runtime.precision_config:DeepSpeedBF16Config",
    "comms_logger": "deepspeed.comm.config:CommsLoggerConfig",
    "tensorboard": "deepspeed.monitor.config:TensorBoardConfig",
    "wandb": "deepspeed.monitor.config:WandbConfig",
    "csv_monitor": "deepspeed.monitor.config:CSVConfig",
    "comet": "deepspeed.monitor.config:CometConfig",
    "compile": "deepspeed.compile.config:CompileConfig",
}
# Sections whose keys it declares as constants, NAME and NAME_DEFAULT.
_CONSTANTS = {
    "activation_checkpointing": "deepspeed.runtime.activation_checkpointing.config",
    "flops_profiler": "deepspeed.profiling.constants",
    "aio": "deepspeed.runtime.swap_tensor.constants",
}
# Top-level keys, from deepspeed.runtime.constants; with the type if it cannot be inferred from the default.
_TOP = {
    "train_batch_size": "integer",
    "train_micro_batch_size_per_gpu": "integer",
    "gradient_accumulation_steps": "integer",
    "managed_gradient_accumulation": "",
    "gradient_clipping": "",
    "steps_per_print": "integer",
    "wall_clock_breakdown": "",
    "memory_breakdown": "",
    "dump_state": "",
    "zero_allow_untested_optimizer": "",
    "zero_force_ds_cpu_optimizer": "",
    "communication_data_type": "text",
    "seq_parallel_communication_data_type": "",
    "prescale_gradients": "",
    "gradient_predivide_factor": "",
    "gradient_allreduce_op": "",
    "disable_allgather": "",
    "disable_python_gc": "",
    "dataloader_drop_last": "",
    "vocabulary_size": "integer",
    "log_level": "text",
}
# Keys of small sections, and sections that are passed on unchecked.
_OTHERS = {
    "optimizer": "section",
    "optimizer.type": "text",
    "optimizer.params": "open",
    "optimizer.legacy_fusion": "boolean",
    "scheduler": "section",
    "scheduler.type": "text",
    "scheduler.params": "open",
    "torch_autocast": "section",
    "torch_autocast.enabled": "boolean",
    "torch_autocast.dtype": "text",
    "torch_autocast.lower_precision_safe_modules": "list",
    "data_types": "section",
    "data_types.grad_accum_dtype": "text",
    "data_types.param_dtype": "text",
    "data_types.buffer_dtype": "text",
    "data_types.keep_in_fp32_modules": "any",
    "sequence_parallel_size": "integer",
    "checkpoint": "open",
    "autotuning": "open",
    "data_efficiency": "open",
    "hybrid_engine": "open",
    "tensor_parallel": "open",
    "expert_parallel": "open",
    "weight_quantization": "open",
    "pipeline": "open",
    "timers": "open",
}
_KINDS = {bool: "boolean", int: "integer", float: "number", str: "text", list: "list", dict: "open"}


def catalogue() -> dict[str, Any]:
    """Every key by its path, with type, default, bounds and choices; and the names of removed keys."""
    keys: dict[str, Any] = {}
    for section, place in _MODELS.items():
        module, _, name = place.partition(":")
        keys[section] = {"type": "section"}
        keys |= _of_model(section, getattr(importlib.import_module(module), name))
    for section, module in _CONSTANTS.items():
        keys[section] = {"type": "section"}
        keys |= {
            f"{section}.{key}": {"type": _KINDS.get(type(default), "integer"), "default": default}
            for key, default in _constants(module).items()
            if key != section
        }
    keys["flops_profiler.output_file"]["type"] = "text"
    defaults = _constants("deepspeed.runtime.constants")
    for key, kind in _TOP.items():
        keys[key] = {"type": kind or _KINDS[type(defaults[key])], "default": defaults[key]}
    keys |= {key: {"type": kind} for key, kind in _OTHERS.items()}
    for entry in keys.values():
        if entry.get("default", 0) is None:
            entry["optional"] = True
    return {
        "deepspeed": importlib.import_module("deepspeed").__version__,
        "keys": dict(sorted(keys.items())),
        **_removed(),
    }


def _of_model(section: str, model: type[BaseModel]) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    for name, declared in model.model_fields.items():
        path = f"{section}.{declared.alias or name}"
        kind, optional = _unwrapped(declared.annotation)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            keys[path] = {"type": "section"}
            keys |= _of_model(path, kind)
            continue
        entry: dict[str, Any] = {"type": _kind(kind), **_choices(kind)}
        if declared.default is not PydanticUndefined:
            entry["default"] = declared.default.value if isinstance(declared.default, Enum) else declared.default
        entry |= {
            name: getattr(bound, name)
            for bound in declared.metadata
            for name in ("ge", "gt", "le")
            if hasattr(bound, name)
        }
        if optional:
            entry["optional"] = True
        if declared.alias not in (None, name):
            entry["also"] = name  # DeepSpeed accepts the field's name too
        if isinstance(declared.json_schema_extra, dict) and declared.json_schema_extra.get("deprecated"):
            entry["instead"] = str(declared.json_schema_extra["new_param"])
        keys[path] = entry
    return keys


def _unwrapped(annotation: Any) -> tuple[Any, bool]:
    members = [member for member in get_args(annotation) if member is not type(None)]
    optional = type(None) in get_args(annotation)
    return (members[0] if optional else annotation), optional


def _kind(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _KINDS[type(next(iter(kind)).value)]
    if isinstance(kind, type) and issubclass(kind, Path):
        return "text"
    return _KINDS.get(get_origin(kind) or kind, "any")


def _choices(kind: Any) -> dict[str, Any]:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"choices": [choice.value for choice in kind if choice.name != "max_stage"]}
    return {"choices": list(get_args(kind))} if get_origin(kind) is Literal else {}


def _constants(module: str) -> dict[str, Any]:
    names = vars(importlib.import_module(module))
    return {
        value: names[f"{name}_DEFAULT"]
        for name, value in names.items()
        if name.isupper() and isinstance(value, str) and f"{name}_DEFAULT" in names
    }


def _removed() -> dict[str, list[str]]:
    from deepspeed.runtime import config

    return {
        "removed": [
            *config._REMOVED_TOP_LEVEL_CONFIG_KEYS,
            *(f"zero_optimization.{key}" for key in config._REMOVED_ZERO_CONFIG_KEYS),
        ]
    }


def render() -> str:
    """The file's text."""
    return json.dumps(catalogue(), indent=1) + "\n"


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
