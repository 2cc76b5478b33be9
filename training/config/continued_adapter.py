"""Compares the adapter that a run would continue with that of its settings: another scale would be another model. No torch."""

import re
from collections.abc import Mapping
from typing import Any

from training.config.name_values import written
from training.config.peft_methods import method_of, options
from training.config.run_config import Changes, RunConfig

LORA_SETTINGS = {"lora_r": "r", "lora_alpha": "lora_alpha", "use_rslora": "use_rslora", "use_dora": "use_dora"}
"""Settings that are fields of PEFT's configuration of LoRA."""
# Fields that do not change what saved weights compute: initialization, dropout, AdaLoRA's schedule, and what PEFT notes; and
# modules, which are compared by the names of the weights.
_FREE = re.compile(
    r"(?!init_r$).*(init_|_init|initial|^init|dropout|_config$)|.*_weights$|tinit|tfinal|deltaT|total_step|beta[12]|orth_reg_weight|"
    r"base_model_name_or_path|revision|peft_version|auto_mapping|inference_mode|task_type|tokenizer_name_or_path|megatron_core|"
    r"runtime_config|(exclude|target)_modules.*|modules_to_save|ensure_weight_tying"
)


def settings_as_fields(config: RunConfig) -> dict[str, Any]:
    """The fields of PEFT's configuration of the run's adapter that its catalogue knows, by name.

    Raises:
        OptionError: as `options`.
    """
    known = method_of(config.method)
    fields = {name: option.default for name, option in known.options.items()} if known else {}
    fields |= options(config.method, config.method_options)
    if config.method.is_lora:
        fields |= {key: getattr(config, name) for name, key in LORA_SETTINGS.items()}
    return fields


def differing(own: Mapping[str, Any], adapter: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an adapter's adapter_config.json with another value than `own`, with the adapter's value."""
    both = (name for name in adapter if name in own and not _FREE.fullmatch(name))
    return {name: adapter[name] for name in both if _plain(adapter[name]) != _plain(own[name])}


def taken_over(config: RunConfig, different: Mapping[str, Any]) -> Changes:
    """The changes of settings with which the run has these fields of an adapter.

    Raises:
        OptionError: as `options`.
    """
    names = {key: name for name, key in LORA_SETTINGS.items()} if config.method.is_lora else {}
    changes: Changes = {names[key]: value for key, value in different.items() if key in names}
    rest = {key: value for key, value in different.items() if key not in names}
    return changes | ({"method_options": written(options(config.method, config.method_options) | rest)} if rest else {})


def _plain(value: Any) -> Any:
    """A value as JSON has it, with empty values alike and lists in one order."""
    if isinstance(value, list | tuple | set):
        return sorted(map(str, value)) or None
    return None if value is False or value in ("", {}) else value
