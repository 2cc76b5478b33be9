"""`python -m tools.references.peft_catalogue` writes PEFT's catalogue and docs/methods.md from its classes.

Pages, command line and rules read the catalogue (training/config/peft_methods.json), so they import neither torch nor PEFT.
"""

import dataclasses
import json
import re
import types
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from peft import PeftConfig, PromptLearningConfig
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING, PEFT_TYPE_TO_TUNER_MAPPING
from peft.utils.constants import TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING

from training.config.choices import Method, Quantization
from training.config.peft_methods import CATALOGUE, Option, PeftMethod, methods
from training.rules.methods import NO_ZERO3, supports

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "methods.md"

LEFT_OUT = {
    "adamss": "needs scikit-learn to cluster the weights.",
    "cpt": "learns from examples in its configuration; on rows with prompt and answer its loss is NaN.",
    "multitask_prompt_tuning": "needs a task id for each row.",
    "poly": "needs a task id for each row.",
    "shadow": "trains a second backbone, and parts of it get no gradient.",
    "xlora": "mixes adapters that are already trained.",
}
"""PEFT's methods that Lathe does not offer, each with the reason. The tests run all others."""

# Options that Lathe sets itself: from its own settings, the model, or the length of the run.
_OWN = {field.name for field in dataclasses.fields(PeftConfig)} | {"target_modules", "modules_to_save"}
_FROM_THE_MODEL = {
    "token_dim",
    "num_transformer_submodules",
    "num_attention_heads",
    "num_layers",
    "tokenizer_name_or_path",
}
_OF_LORA = {"r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora", "init_lora_weights"}
# Options of LoRA that need more than values: Megatron, GPTQ, adapters of other runs, data, code.
_UNUSABLE = {
    *("megatron_config", "megatron_core", "use_qalora", "qalora_group_size", "loftq_config", "velora_config"),
    *("alora_invocation_tokens", "fan_in_fan_out"),  # PEFT detects the layout of the weights
}
_SKIPPED = {
    "lora": _OF_LORA,
    # AdaLoRA inherits these from LoRA but ignores them; total_step comes from the run.
    "adalora": {"r", "use_dora", "init_lora_weights", "rank_pattern", "total_step"},
    "prompt_tuning": {"tokenizer_kwargs"},
}
_HELP_LENGTH = 240


INTRODUCTION = """\
# Methods and their options

`python -m tools.references.peft_catalogue` generates this page from the configuration classes of PEFT.

`method` selects the training method: `full`, `lora`, `qlora`, or one of the methods below. Set options that are not
[settings](configuration.md) in `method_options`, as text or, in a YAML file, as a mapping:

    method: vera
    method_options: r=128, d_initial=0.2

Write a list as `[0, 1]` and a mapping as `{q_proj: 4}`. `qlora` has the options of `lora`. `lathe targets` shows which modules of a
model a method matches, without training.
"""
LEFT_OUT_HEAD = """\
## Unsupported methods

Lathe does not offer these methods of PEFT:

| method | reason |
| --- | --- |
"""


def catalogue() -> dict[str, Any]:
    """Every supported method by name: its configuration class and its options."""
    return {name: _method(name, cls) for name, cls in sorted(classes().items()) if name not in LEFT_OUT}


def classes() -> dict[str, type[PeftConfig]]:
    """PEFT's configuration classes by the name of their method."""
    return {kind.value.lower(): cls for kind, cls in PEFT_TYPE_TO_CONFIG_MAPPING.items()}


def render() -> str:
    """The text of the catalogue file."""
    return json.dumps(catalogue(), indent=1, ensure_ascii=False) + "\n"


def _method(name: str, cls: type[PeftConfig]) -> dict[str, Any]:
    hints = get_type_hints(cls)
    skipped = _OWN | _FROM_THE_MODEL | _UNUSABLE | _SKIPPED.get(name, set())
    fields = [field for field in dataclasses.fields(cls) if field.name not in skipped]
    options = {field.name: _option(field, hints[field.name]) for field in fields}
    return {
        "config": cls.__name__,
        "usual_targets": _usual_targets(name),
        "prompts": issubclass(cls, PromptLearningConfig),
        "targets": "target_modules" in hints,
        "saves_modules": "modules_to_save" in hints,
        "options": {key: option for key, option in options.items() if option},
    }


def _usual_targets(name: str) -> dict[str, str]:
    """PEFT's default target modules by architecture, separated by commas."""
    kinds = {kind.value.lower(): tuner for kind, tuner in PEFT_TYPE_TO_TUNER_MAPPING.items()}
    own = {"ia3": TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING}  # the one class that does not tell its defaults
    known = own.get(name) or getattr(kinds.get(name), "target_module_mapping", None) or {}
    return {
        model: ", ".join(sorted(modules)) for model, modules in sorted(known.items()) if not isinstance(modules, str)
    }


def _option(field: "dataclasses.Field[Any]", hint: Any) -> dict[str, Any] | None:
    """The option's kinds, choices, default and help; None if users cannot write such a value."""
    members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    choices = [str(choice) for member in members for choice in _choices(member)]
    # Sorted, since Python caches unions regardless of the order of their members.
    kinds = sorted({kind for member in members if (kind := _kind(member)) and not (choices and kind == "text")})
    if not kinds and not choices:
        return None
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return {
        "kinds": kinds + ["choice"] * bool(choices),
        "choices": choices,
        "default": getattr(default, "value", default),
        "help": _help(str(field.metadata.get("help", ""))),
    }


def _choices(member: Any) -> list[Any]:
    if get_origin(member) is Literal:
        return list(get_args(member))
    return [choice.value for choice in member] if isinstance(member, type) and issubclass(member, Enum) else []


def _kind(member: Any) -> str | None:
    if get_origin(member) is list:
        return {str: "texts", int: "integers"}.get(get_args(member)[0])
    if get_origin(member) is dict or member is dict:
        return "mapping"
    return {bool: "boolean", int: "integer", float: "number", str: "text"}.get(member)


def _help(text: str) -> str:
    """The first sentences of a help text, as plain text on one line."""
    plain = re.sub(r"<a [^>]*>|</a>", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(text.split())))
    sentences = re.split(r"(?<=[.!?]) (?=[A-Z`'\"])", plain)
    summary = sentences[0]
    for sentence in sentences[1:]:
        if len(summary) + len(sentence) > _HELP_LENGTH:
            break
        summary += " " + sentence
    return summary


def document() -> str:
    """docs/methods.md: every method with its options."""
    left_out = "".join(f"| `{name}` | {reason} |\n" for name, reason in LEFT_OUT.items())
    return "\n".join([INTRODUCTION, *map(_section, methods().values()), LEFT_OUT_HEAD + left_out])


def _section(known: PeftMethod) -> str:
    quantizations = [
        kind.value for kind in Quantization if kind is not Quantization.NONE and supports(Method(known.name), kind)
    ]
    facts = [
        f"PEFT's `{known.config}`.",
        "Applies to `target_modules`."
        if known.targets
        else "Learns virtual tokens before each row."
        if known.prompts
        else "",
        f"Supports {' and '.join(quantizations)} quantization." if quantizations else "Does not support quantization.",
        "Does not support ZeRO-3." if known.name in NO_ZERO3 else "",
    ]
    head = "| option | what it does | takes | default |\n| --- | --- | --- | --- |"
    rows = [_row(name, option) for name, option in known.options.items()]
    return "\n".join([f"## {known.name}", "", " ".join(fact for fact in facts if fact), "", head, *rows, ""])


def _row(name: str, option: Option) -> str:
    default = "empty" if option.default is None else f"`{json.dumps(option.default)}`"
    text = re.sub(r"([|<])", r"\\\1", option.help) or "-"
    return f"| `{name}` | {text} | {option.takes} | {default} |"


def main() -> None:
    CATALOGUE.write_text(render(), encoding="utf-8")
    methods.cache_clear()
    DOCUMENT.write_text(document(), encoding="utf-8")


if __name__ == "__main__":
    main()
