"""PEFT's methods and their options, from `training/config/peft_methods.json`. No torch."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import regex

from training.config.choices import Method
from training.config.name_values import OptionError, as_names, parse, value_text, written
from training.nearest import nearest
from training.tables import Otherwise

CATALOGUE = Path(__file__).with_name("peft_methods.json")
REQUIRED: dict[Method, dict[str, Any]] = Otherwise(
    {},
    {
        Method.ADAPTION_PROMPT: {"adapter_len": 10, "adapter_layers": 2},
        Method.CARTRIDGE: {"num_virtual_tokens": 32},
        Method.P_TUNING: {"num_virtual_tokens": 20, "encoder_hidden_size": 128},
        Method.PREFIX_TUNING: {"num_virtual_tokens": 20},
        Method.PROMPT_TUNING: {"num_virtual_tokens": 20},
        Method.TRAINABLE_TOKENS: {"token_indices": [0]},
    },
)
"""Options that PEFT needs although its classes have a default for them, each with a typical value."""

TYPES = {
    "boolean": "true or false",
    "integer": "an integer",
    "number": "a number",
    "text": "text",
    "texts": "a list such as [q_proj, v_proj]",
    "integers": "a list of integers such as [0, 1]",
    "mapping": "a mapping such as {q_proj: 4}",
}
OR = "or"


@dataclass(frozen=True)
class Option:
    """One option of a method; `kinds` are the types it accepts, `choices` the allowed texts."""

    kinds: Sequence[str]
    choices: Sequence[str]
    default: Any
    help: str

    @property
    def takes(self) -> str:
        """The accepted values as text."""
        return self.taken(str)

    def taken(self, translation: Callable[[str], str]) -> str:
        """The accepted values as text, with the words of TYPES and OR translated."""
        types = [translation(TYPES[kind]) for kind in self.kinds if kind != "choice"]
        return f" {translation(OR)} ".join([*types, *([", ".join(self.choices)] if self.choices else [])])


@dataclass(frozen=True)
class PeftMethod:
    """A method as PEFT's configuration class declares it."""

    name: str
    config: str
    usual_targets: Mapping[str, str]
    """PEFT's default target modules, separated by commas, by architecture."""
    prompts: bool
    """True if it trains virtual tokens in front of every row and no modules of the model."""
    targets: bool
    """True if it takes target modules."""
    saves_modules: bool
    options: Mapping[str, Option]


@cache
def methods() -> dict[str, PeftMethod]:
    """All PEFT methods by name."""
    catalogue: dict[str, Any] = json.loads(CATALOGUE.read_text(encoding="utf-8"))
    for name, values in catalogue.items():
        values["options"] = {key: Option(**option) for key, option in values["options"].items()}
        catalogue[name] = PeftMethod(name, **values)
    return catalogue


def method_of(name: str) -> PeftMethod | None:
    """The PEFT method of a `RunConfig.method`; None for full."""
    return methods().get(Method.LORA if name == Method.QLORA else name)


@lru_cache(maxsize=1024)
def usual_targets(name: str, model_type: str) -> tuple[str, ...] | None:
    """The modules that `target_modules: auto` selects for an architecture; None if it selects all linear layers."""
    known = method_of(name)
    modules = known.usual_targets.get(model_type) if known else None
    return tuple(as_names(modules)) if modules is not None else None


_STATE_SPACE = ("falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h")


def refused_targets(name: str, model_type: str) -> tuple[str, ...]:
    """The modules that PEFT's LoRA-like methods refuse in state-space models, whose fused kernels read their weights."""
    lora_like = name in (Method.LORA, Method.QLORA, Method.ADALORA, Method.RANDLORA)
    return ("out_proj", "conv1d") if lora_like and model_type in _STATE_SPACE else ()


def options(name: str, given: str | None) -> dict[str, Any]:
    """The method's options, with the types of its PEFT configuration. Raises OptionError if it is not
    `name=value, ...`, an option is unknown, or a value has a wrong type."""
    values = parse(given)
    known = method_of(name)
    if values and known is None:
        raise OptionError(f"method {name} has no options.", "Leave method_options empty.", "")
    return {key: _checked(known, key, value, values) for key, value in values.items() if known}


def is_pattern(wanted: str) -> bool:
    """True if target modules are a regular expression, False if they are names separated by commas."""
    return any(sign in wanted for sign in "*+?^$()[]{}|\\")


HEADS = ("lm_head", "embed_out")
"""Names of the module that computes the logits. PEFT's all-linear leaves it out."""
LONGEST_PATTERN = 2000


def targets_head(wanted: str) -> bool:
    """True if target modules include the head."""
    if is_pattern(wanted):
        return any(pattern_matches(wanted, head) for head in HEADS)
    return not set(HEADS).isdisjoint(as_names(wanted))


def without_head(wanted: str) -> str:
    """The same target modules without the head; auto if nothing is left, or the pattern would be too long."""
    if is_pattern(wanted):
        pattern = f"(?!(?:{'|'.join(HEADS)})$)(?:{wanted})"
        return pattern if len(pattern) <= LONGEST_PATTERN else "auto"
    return ", ".join(name for name in as_names(wanted) if name not in HEADS) or "auto"


def _checked(known: PeftMethod, key: str, value: Any, given: dict[str, Any]) -> Any:
    others = {name: text for name, text in given.items() if name != key}
    if key not in known.options:
        close = nearest(key, known.options)
        fix = f"Did you mean {close[0]}?" if close else f"It has {', '.join(known.options)}."
        corrected = written(
            {close[0] if close and name == key else name: text for name, text in given.items() if close or name != key}
        )
        raise OptionError(f"{key} is not an option of {known.name}.", fix, corrected)
    option = known.options[key]
    for kind in option.kinds:
        fits, converted = _as(kind, value, option.choices)
        if fits:
            return converted
    if value is None and option.default is None:
        return None
    raise OptionError(f"{key} cannot be {value_text(value)}.", f"It must be {option.takes}.", written(others))


def _as(kind: str, value: Any, choices: Sequence[str]) -> tuple[bool, Any]:
    """(True, the value for PEFT) if it is of this kind, else (False, ...). Numbers may be text, since YAML reads 1e-4 as text."""
    if kind == "choice":
        return str(value) in choices, str(value)
    if kind == "number":
        return _number(value)
    if kind in ("texts", "integers"):
        item = str if kind == "texts" else int
        return isinstance(value, list) and all(type(element) is item for element in value), value
    return type(value) is {"boolean": bool, "integer": int, "text": str, "mapping": dict}[kind], value


def _number(value: Any) -> tuple[bool, Any]:
    try:
        return not isinstance(value, bool), float(value)
    except (TypeError, ValueError):
        return False, value


MATCH_SECONDS = 0.2
_LONG_NAME = "model.language_model.layers.0.self_attn.q_proj" + ".x" * 20


@lru_cache(maxsize=64)
def pattern_problem(pattern: str) -> str | None:
    """Why a pattern cannot be used; None if it can. PEFT matches it with `re`, so both must accept it."""
    if len(pattern) > LONGEST_PATTERN:
        return f"has {len(pattern):,} characters; at most {LONGEST_PATTERN:,} are possible"
    try:
        re.compile(pattern)
        _compiled(pattern).fullmatch(_LONG_NAME, timeout=MATCH_SECONDS, concurrent=True)
    except (re.error, regex.error, OverflowError) as error:
        return f"is not valid: {error}"
    except RecursionError:
        return "is nested too deeply"
    except TimeoutError:
        return "takes too long to match. Nested repetitions such as (a+)+ cause this"
    return None


def pattern_matches(pattern: str, name: str) -> bool:
    """True if the pattern matches the whole name; False for a pattern with a `pattern_problem`."""
    if pattern_problem(pattern):
        return False
    try:
        return bool(_compiled(pattern).fullmatch(name, timeout=MATCH_SECONDS, concurrent=True))
    except TimeoutError:
        return False


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> "regex.Pattern[str]":
    return regex.compile(pattern)
