"""training/peft_methods.json and docs/methods.md, written from PEFT's configuration classes: `python -m training.peft_catalogue`.

The catalogue is what those who import neither torch nor PEFT know of its methods: pages, command line and rules.
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

from training.config import Method, Quantization
from training.method_rules import UNDER_NO_ZERO3, holds
from training.methods import CATALOGUE, Option, PeftMethod, methods

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "methods.md"

LEFT_OUT = {
    "adamss": "needs scikit-learn to cluster the weights.",
    "cpt": "learns from examples that stand in its own configuration; on rows of prompt and answer its loss is NaN.",
    "multitask_prompt_tuning": "needs the number of a task with every row.",
    "poly": "needs the number of a task with every row.",
    "shadow": "trains a second backbone, parts of which get no gradient.",
    "xlora": "mixes adapters that are trained already.",
}
"""PEFT's methods that are not offered, each with the reason. The tests try all others."""

# What Lathe sets itself: by settings of its own, from the model, or from the run's length.
_OWN = {field.name for field in dataclasses.fields(PeftConfig)} | {"target_modules", "modules_to_save"}
_FROM_THE_MODEL = {
    "token_dim",
    "num_transformer_submodules",
    "num_attention_heads",
    "num_layers",
    "tokenizer_name_or_path",
}
_OF_LORA = {"r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora", "init_lora_weights"}
# Parts of LoRA that ask for more than values: Megatron, GPTQ, adapters of other runs, data, code.
_UNUSABLE = {
    *("megatron_config", "megatron_core", "use_qalora", "qalora_group_size", "loftq_config", "velora_config"),
    *("alora_invocation_tokens", "fan_in_fan_out"),  # PEFT sees by itself how a layer holds its weights
}
_SKIPPED = {
    "lora": _OF_LORA,
    # What AdaLoRA inherits of LoRA and does not use; total_step is the run's.
    "adalora": {"r", "use_dora", "init_lora_weights", "rank_pattern", "total_step"},
    "prompt_tuning": {"tokenizer_kwargs"},
}
_HELP_LENGTH = 240


INTRODUCTION = """\
# Methods and their options

Written by `python -m training.peft_catalogue` from the configuration classes of PEFT.

`method` names how a model is tuned: `full`, `lora`, `qlora`, or one of the methods below. What a method takes besides the
[settings](configuration.md) is given in `method_options`, as text or, in a YAML file, as a mapping:

    method: vera
    method_options: r=128, d_initial=0.2

A list is written `[0, 1]` and a mapping `{q_proj: 4}`. `qlora` takes the options of `lora`. `lathe targets` shows what a method
matches in a model before anything is trained.
"""
LEFT_OUT_HEAD = """\
## Left out

Methods of PEFT that are not offered:

| method | because it |
| --- | --- |
"""


def catalogue() -> dict[str, Any]:
    """Every method that is offered, by name: its configuration class and its own options."""
    return {name: _method(name, cls) for name, cls in sorted(classes().items()) if name not in LEFT_OUT}


def classes() -> dict[str, type[PeftConfig]]:
    """PEFT's configuration classes by the name of their method."""
    return {kind.value.lower(): cls for kind, cls in PEFT_TYPE_TO_CONFIG_MAPPING.items()}


def render() -> str:
    """The catalogue as it stands on disk."""
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
    """The modules that PEFT takes where none are named, by architecture, separated by commas."""
    kinds = {kind.value.lower(): tuner for kind, tuner in PEFT_TYPE_TO_TUNER_MAPPING.items()}
    known = getattr(kinds.get(name), "target_module_mapping", None) or {}
    return {
        model: ", ".join(sorted(modules)) for model, modules in sorted(known.items()) if not isinstance(modules, str)
    }


def _option(field: "dataclasses.Field[Any]", hint: Any) -> dict[str, Any] | None:
    """Its kinds, choices, default and help; None where a person cannot write such a value."""
    members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    choices = [str(choice) for member in members for choice in _choices(member)]
    # Sorted: Python remembers a union by its members and hands out whichever order was written first.
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
    return [one.value for one in member] if isinstance(member, type) and issubclass(member, Enum) else []


def _kind(member: Any) -> str | None:
    if get_origin(member) is list:
        return {str: "texts", int: "integers"}.get(get_args(member)[0])
    if get_origin(member) is dict or member is dict:
        return "mapping"
    return {bool: "boolean", int: "integer", float: "number", str: "text"}.get(member)


def _help(text: str) -> str:
    """Its first sentences, as plain text on one line."""
    plain = re.sub(r"<a [^>]*>|</a>", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(text.split())))
    sentences = re.split(r"(?<=[.!?]) (?=[A-Z`'\"])", plain)
    told = sentences[0]
    for sentence in sentences[1:]:
        if len(told) + len(sentence) > _HELP_LENGTH:
            break
        told += " " + sentence
    return told


def document() -> str:
    """docs/methods.md: every method with its options."""
    left_out = "".join(f"| `{name}` | {reason} |\n" for name, reason in LEFT_OUT.items())
    return "\n".join([INTRODUCTION, *map(_section, methods().values()), LEFT_OUT_HEAD + left_out])


def _section(known: PeftMethod) -> str:
    held = [one.value for one in (Quantization.NF4, Quantization.INT8) if holds(Method(known.name), one)]
    facts = [
        f"PEFT's `{known.config}`.",
        "Put on `target_modules`."
        if known.targets
        else "Learns virtual tokens in front of every row."
        if known.prompts
        else "",
        f"Weights may be held in {' and '.join(held)}." if held else "The weights cannot be quantised.",
        "Not under ZeRO-3." if known.name in UNDER_NO_ZERO3 else "",
    ]
    head = "| option | what it does | takes | default |\n| --- | --- | --- | --- |"
    rows = [_row(name, one) for name, one in known.options.items()]
    return "\n".join([f"## {known.name}", "", " ".join(fact for fact in facts if fact), "", head, *rows, ""])


def _row(name: str, option: Option) -> str:
    default = "empty" if option.default is None else f"`{json.dumps(option.default)}`"
    told = re.sub(r"([|<])", r"\\\1", option.help) or "-"
    return f"| `{name}` | {told} | {option.takes} | {default} |"


def main() -> None:
    CATALOGUE.write_text(render(), encoding="utf-8")
    methods.cache_clear()
    DOCUMENT.write_text(document(), encoding="utf-8")


if __name__ == "__main__":
    main()
