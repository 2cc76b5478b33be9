"""The settings of RunConfig as the form, the command line and the docs use them, and the labels of choices (choices.toml)."""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from training.config.choices import Group
from training.config.run_config import Changes, RunConfig
from training.errors import Problem, UserError
from training.nearest import nearest

_MOST_PROBLEMS = 50
Kind = Literal["text", "integer", "number", "boolean", "choice"]
BOUNDS = ("{} to {}", "above {}", "at least {}", "below {}", "at most {}")


@dataclass(frozen=True)
class Setting:
    """One setting of RunConfig: `name` for files and flags, `label` and help `sentence` for users; bounds inclusive unless open."""

    name: str
    label: str
    sentence: str
    group: Group
    basic: int
    advanced: bool
    kind: Kind
    default: Any
    required: bool
    optional: bool
    choices: tuple[str, ...] = ()
    choice_labels: tuple[str, ...] = ()
    choice_sentences: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    open_minimum: bool = False
    open_maximum: bool = False

    def in_words(self, value: Any) -> str:
        """The value as pages show it: a choice by its label, a number as typed."""
        if str(value) in self.choices:
            return self.choice_labels[self.choices.index(str(value))]
        return _plain(value)

    @property
    def bounds(self) -> str:
        """The bounds as text: "1 to 1024", "above 0, at most 1", or empty."""
        return self.bounded(str)

    def bounded(self, translation: Callable[[str], str]) -> str:
        """The bounds as text, with the words of BOUNDS translated."""
        between, above, at_least, below, at_most = map(translation, BOUNDS)
        low, high = _number(self.minimum), _number(self.maximum)
        if self.minimum is not None and self.maximum is not None and not self.open_minimum and not self.open_maximum:
            return between.format(low, high)
        parts = [(above if self.open_minimum else at_least).format(low)] if self.minimum is not None else []
        parts += [(below if self.open_maximum else at_most).format(high)] if self.maximum is not None else []
        return ", ".join(parts)


class ConfigError(UserError):
    """A configuration that cannot be used; `problems` has one entry for each wrong setting."""

    def __init__(self, problems: list[Problem]) -> None:
        first, *others = problems
        super().__init__(first.field, first.value, first.message, first.fix, *others)


@cache
def settings() -> dict[str, Setting]:
    """All settings of RunConfig by name, in the order of the form."""
    return {name: _setting(name, field) for name, field in RunConfig.model_fields.items()}


def parse(values: dict[str, Any]) -> RunConfig:
    """The configuration with these `values` (setting name to value, as typed or read from a file). Raises ConfigError if a
    setting is missing, unknown or has a wrong value; names each one and its fix."""
    # pydantic would take half a second for the details of 60,000 unknown names.
    uncounted = set([name for name in values if name not in RunConfig.model_fields][_MOST_PROBLEMS:])
    values = {name: value for name, value in values.items() if name not in uncounted}
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        details = error.errors(include_url=False)
        problems = [_problem(detail, values) for detail in details[:_MOST_PROBLEMS]]
        if more_wrong := len(details) - len(problems) + len(uncounted):
            more = f"{more_wrong:,} more settings are wrong."
            problems.append(Problem("configuration", None, more, "Correct the others first."))
        raise ConfigError(problems) from None


def _setting(name: str, field: FieldInfo) -> Setting:
    types, optional = _types(field.annotation)
    extra = field.json_schema_extra
    if not isinstance(extra, dict):
        raise TypeError(f"RunConfig.{name} is not declared with setting()")
    bounds = {
        key: getattr(item, key) for item in field.metadata for key in ("ge", "gt", "le", "lt") if hasattr(item, key)
    }
    required = field.default is PydanticUndefined
    choices = tuple(types[0]) if issubclass(types[0], StrEnum) else ()
    return Setting(
        name=name,
        label=str(extra["label"] or name.replace("_", " ").capitalize()),
        sentence=field.description or "",
        group=Group(str(extra["group"])),
        basic=int(str(extra["basic"])),
        advanced=bool(extra["advanced"]),
        kind=_kind(types),
        default=None if required else field.default,
        required=required,
        optional=optional,
        choices=tuple(choice.value for choice in choices),
        choice_labels=tuple(choice_label(choice) for choice in choices),
        choice_sentences=tuple(choice_sentence(name, choice) for choice in choices),
        minimum=bounds.get("ge", bounds.get("gt")),
        maximum=bounds.get("le", bounds.get("lt")),
        open_minimum="gt" in bounds,
        open_maximum="lt" in bounds,
    )


def _types(annotation: Any) -> tuple[list[type], bool]:
    if get_origin(annotation) not in (UnionType, Union):
        return [annotation], False
    members = get_args(annotation)
    return [member for member in members if member is not type(None)], type(None) in members


def _kind(types: list[type]) -> Kind:
    first = types[0]
    if issubclass(first, StrEnum):
        return "choice"
    if first is bool:
        return "boolean"
    if float in types:
        return "number"
    return "integer" if first is int else "text"


def _problem(detail: Any, values: dict[str, Any]) -> Problem:
    name = str(detail["loc"][0]) if detail["loc"] else "configuration"
    known = settings().get(name)
    if detail["type"] == "extra_forbidden" or known is None:
        return Problem(name, values.get(name), "is not a setting.", _nearest(name))
    if detail["type"] == "missing" or (known.required and values.get(name) in ("", None)):
        return Problem(name, None, "is missing.", known.sentence)
    return Problem(name, values.get(name), *_message(detail, known))


def _message(detail: Any, known: Setting) -> tuple[str, str]:
    bounds = f" {known.bounds}" if known.bounds else ""
    default = "" if known.default is None or known.default == "" else f", for example {_plain(known.default)}"
    match known.kind:
        case "choice":
            return "is not one of the choices.", _choice(str(detail["input"]), known.choices)
        case "boolean":
            return "is not true or false.", "Give true or false."
        case "number" | "integer":
            message = "is out of bounds."
            if detail["type"].endswith(("_parsing", "_type", "_from_float")):
                message = f"is not {'an integer' if known.kind == 'integer' else 'a number'}."
            elif detail["type"] == "value_error":
                message = f"{detail['ctx']['error']}."
            return message, f"Give a number{bounds}{default}."
        case _:
            message = str(detail["ctx"]["error"]) if detail["type"] == "value_error" else detail["msg"]
            return f"{message[0].lower()}{message[1:].removesuffix('.')}.", known.sentence


def _choice(given: str, choices: tuple[str, ...]) -> str:
    """The fix for a wrong choice: all choices if they are few, else the closest one and some examples."""
    if len(choices) <= _FEW_CHOICES:
        return f"Choose {', '.join(choices)}."
    close = nearest(given.lower(), choices)
    more = len(choices) - _NAMED_CHOICES
    named = f"Choose {', '.join(choices[:_NAMED_CHOICES])}, or one of {more} more in docs/configuration.md."
    return f"Did you mean {close[0]}? {named}" if close else named


_FEW_CHOICES, _NAMED_CHOICES = 15, 3


def _nearest(name: str) -> str:
    if name in ELSEWHERE:
        return f"In Lathe it is {ELSEWHERE[name]}. `lathe import` translates files of other programs."
    close = nearest(name, settings())
    return f"Did you mean {close[0]}?" if close else "docs/configuration.md lists every setting."


def _plain(value: Any) -> str:
    return _number(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def _number(value: float | None) -> str:
    return f"{value:g}" if isinstance(value, float) else f"{value}"


def in_words(changes: Changes) -> str:
    """Changed settings as text: "micro batch size 2, gradient accumulation 4"."""
    return ", ".join(f"{settings()[name].label.lower()} {value}" for name, value in changes.items())


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8"))


_TEXTS: dict[str, dict[str, dict[str, list[str]]]] = _read("choices")
"""By the type of the choices, the setting and the choice: a label, which may be empty, and a sentence."""


def choice_label(choice: StrEnum) -> str:
    """The choice as pages show it; files and flags take its value."""
    by_setting = _TEXTS.get(type(choice).__name__, {})
    label = next((texts[choice.value][0] for texts in by_setting.values()), "")
    return label or choice.value.replace("_", " ").capitalize()


def choice_sentence(setting: str, choice: StrEnum) -> str:
    """The sentence that the form shows below the chosen one; a method of PEFT may have none of its own."""
    _, *sentence = _TEXTS[type(choice).__name__][setting][choice.value]
    return sentence[0] if sentence else f"{choice_label(choice)} of PEFT; its options are listed under Method."


ELSEWHERE: dict[str, str] = {name: setting for setting, names in _read("elsewhere").items() for name in names}
"""The setting by its name in another program."""
