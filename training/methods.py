"""PEFT's methods and their own options, as `training/peft_methods.json` knows them. No torch.

A method's options are one setting, `method_options`: text such as `r=8, d_initial=0.1`, in which a list is [1, 2] and a mapping
{q_proj: 4}.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

CATALOGUE = Path(__file__).with_name("peft_methods.json")
REQUIRED: dict[str, dict[str, Any]] = {
    "adaption_prompt": {"adapter_len": 10, "adapter_layers": 2},
    "cartridge": {"num_virtual_tokens": 32},
    "p_tuning": {"num_virtual_tokens": 20, "encoder_hidden_size": 128},
    "prefix_tuning": {"num_virtual_tokens": 20},
    "prompt_tuning": {"num_virtual_tokens": 20},
    "trainable_tokens": {"token_indices": [0]},
}
"""Options without which PEFT makes no such adapter, though its classes have a default for them; with a usual value."""

_WORDS = {
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "text": "text",
    "texts": "a list such as [q_proj, v_proj]",
    "integers": "a list of whole numbers such as [0, 1]",
    "mapping": "a mapping such as {q_proj: 4}",
}


@dataclass(frozen=True)
class Option:
    """One option of a method; `kinds` are the types it takes, `choices` the words."""

    kinds: tuple[str, ...]
    choices: tuple[str, ...]
    default: Any
    help: str

    @property
    def takes(self) -> str:
        """What may be given, in words."""
        told = [_WORDS[kind] for kind in self.kinds if kind != "choice"]
        return " or ".join([*told, *([", ".join(self.choices)] if self.choices else [])])


@dataclass(frozen=True)
class PeftMethod:
    """What PEFT's configuration class of a method says: its options, and what else it takes."""

    name: str
    config: str
    usual_targets: Mapping[str, tuple[str, ...]]
    """The modules that PEFT takes where none are named, by architecture."""
    prompts: bool
    """Whether it learns virtual tokens in front of every row, and no modules of the model."""
    targets: bool
    """Whether it is put on target modules."""
    saves_modules: bool
    options: Mapping[str, Option]


class OptionError(ValueError):
    """Method options that cannot be used: what is wrong, the fix, and the options without what is wrong."""

    def __init__(self, message: str, fix: str, mended: str) -> None:
        super().__init__(f"{message} {fix}")
        self.message, self.fix, self.mended = message, fix, mended


@cache
def methods() -> dict[str, PeftMethod]:
    """Every PEFT method by name."""
    found = json.loads(CATALOGUE.read_text(encoding="utf-8"))
    return {name: _method(name, values) for name, values in found.items()}


def method(name: str) -> PeftMethod | None:
    """The PEFT method that `RunConfig.method` names; None for full."""
    return methods().get("lora" if name == "qlora" else name)


def usual_targets(name: str, model_type: str) -> tuple[str, ...] | None:
    """The modules that `target_modules: auto` means for an architecture; None where it means every linear layer."""
    known = method(name)
    return known.usual_targets.get(model_type) if known else None


def options(name: str, given: str | None) -> dict[str, Any]:
    """The options given for the method, as values of the types that its PEFT configuration takes.

    Raises:
        OptionError: not `name=value, ...`, an option that the method has not, or a value of another type.
    """
    values = parse(given)
    known = method(name)
    if values and known is None:
        raise OptionError(f"method {name} has no options of its own.", "Leave method_options empty.", "")
    return {key: _checked(known, key, value, values) for key, value in values.items() if known}


def is_pattern(wanted: str) -> bool:
    """Whether target modules are given as a regular expression, and not as names separated by commas."""
    return any(sign in wanted for sign in "*+?^$()[]{}|\\")


def as_names(text: str) -> list[str]:
    """Names separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def parse(given: str | None) -> dict[str, Any]:
    """The text `name=value, name=value` as names and values of YAML's types.

    Raises:
        OptionError: it cannot be read so.
    """
    text = re.sub(r"(^|,)\s*([A-Za-z_]\w*)\s*=", r"\1 \2: ", given or "")
    try:
        values = yaml.safe_load("{" + text + "}")
    except yaml.YAMLError:
        values = None
    if not isinstance(values, dict) or any(not isinstance(key, str) or "=" in key for key in values):
        raise OptionError("is not of the form name=value, name=value.", "For example r=8, alpha=16.", "")
    return values


_OWN_ARGUMENTS = ("messages", "conversation", "tools", "documents", "add_generation_prompt", "tokenize")


def template_arguments(given: str | None) -> dict[str, Any]:
    """`chat_template_kwargs` as arguments of a chat template.

    Raises:
        OptionError: not `name=value, ...`, or an argument that every row brings itself.
    """
    values = parse(given)
    for name in values:
        if name in _OWN_ARGUMENTS:
            message = f"sets {name}, which Lathe gives the template for each row."
            raise OptionError(
                message, f"Leave {name} out.", written({key: values[key] for key in values if key != name})
            )
    return values


def written(values: Mapping[str, Any]) -> str:
    """Options as the text that `parse` reads."""
    return ", ".join(f"{key}={_value(value)}" for key, value in values.items())


def _value(value: Any) -> str:
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w.-]*", value) and yaml.safe_load(value) == value
    return str(value) if plain else json.dumps(value, ensure_ascii=False)


def _method(name: str, values: dict[str, Any]) -> PeftMethod:
    made = {
        key: Option(tuple(one["kinds"]), tuple(one["choices"]), one["default"], one["help"])
        for key, one in values["options"].items()
    }
    usual = {model: tuple(as_names(modules)) for model, modules in values["usual_targets"].items()}
    return PeftMethod(
        name, values["config"], usual, values["prompts"], values["targets"], values["saves_modules"], made
    )


def _checked(known: PeftMethod, key: str, value: Any, given: dict[str, Any]) -> Any:
    from difflib import get_close_matches

    others = {name: one for name, one in given.items() if name != key}
    if key not in known.options:
        close = get_close_matches(key, known.options, n=1)
        fix = f"Did you mean {close[0]}?" if close else f"It has {', '.join(known.options)}."
        mended = written(
            {close[0] if close and name == key else name: one for name, one in given.items() if close or name != key}
        )
        raise OptionError(f"{key} is not an option of {known.name}.", fix, mended)
    option = known.options[key]
    for kind in option.kinds:
        fits, made = _as(kind, value, option.choices)
        if fits:
            return made
    if value is None and option.default is None:
        return None
    raise OptionError(f"{key} cannot be {_value(value)}.", f"It takes {option.takes}.", written(others))


def _as(kind: str, value: Any, choices: tuple[str, ...]) -> tuple[bool, Any]:
    """Whether the value is of the kind, and as what PEFT takes it; YAML reads 1e-4 as text and a list of one as its item."""
    if kind == "choice":
        return str(value) in choices, str(value)
    if kind == "number":
        return _number(value)
    if kind in ("texts", "integers"):
        item = str if kind == "texts" else int
        return isinstance(value, list) and all(type(one) is item for one in value), value
    return type(value) is {"boolean": bool, "integer": int, "text": str, "mapping": dict}[kind], value


def _number(value: Any) -> tuple[bool, Any]:
    try:
        return not isinstance(value, bool), float(value)
    except (TypeError, ValueError):
        return False, value
