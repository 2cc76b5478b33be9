"""What the form, the command line and the docs need to know of each setting, read off RunConfig."""

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from training.config import Group, RunConfig

Kind = Literal["text", "integer", "number", "boolean", "choice"]


@dataclass(frozen=True)
class Setting:
    """One setting of RunConfig: `name` in files and flags, `label` and `sentence` for people, bounds inclusive unless open."""

    name: str
    label: str
    sentence: str
    group: Group
    advanced: bool
    kind: Kind
    default: Any
    required: bool
    optional: bool
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    open_minimum: bool = False
    open_maximum: bool = False

    @property
    def bounds(self) -> str:
        """The bounds in words: "1 to 1024", "above 0, at most 1", or empty."""
        low = (
            f"{'above' if self.open_minimum else 'at least'} {_number(self.minimum)}"
            if self.minimum is not None
            else ""
        )
        high = (
            f"{'below' if self.open_maximum else 'at most'} {_number(self.maximum)}" if self.maximum is not None else ""
        )
        if low and high and not self.open_minimum and not self.open_maximum:
            return f"{_number(self.minimum)} to {_number(self.maximum)}"
        return ", ".join(part for part in (low, high) if part)


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a configuration: the setting, what was given, and what to do about it."""

    field: str
    value: Any
    message: str
    fix: str = ""

    def __str__(self) -> str:
        given = "" if self.value is None else f" (given: {self.value!r})"
        return f"{self.field}{given}: {self.message}" + (f" {self.fix}" if self.fix else "")


class ConfigError(ValueError):
    """A configuration that cannot be used; `problems` names every setting at fault."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


@cache
def settings() -> dict[str, Setting]:
    """Every setting of RunConfig by name, in the order of the form."""
    return {name: _setting(name, field) for name, field in RunConfig.model_fields.items()}


def parse(values: dict[str, Any]) -> RunConfig:
    """Checks `values` (setting name to value, as typed or as read from a file).

    Raises:
        ConfigError: naming each setting at fault, the value given and the fix.
    """
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError([_problem(detail, values) for detail in error.errors()]) from None


def _setting(name: str, field: FieldInfo) -> Setting:
    types, optional = _types(field.annotation)
    extra = field.json_schema_extra
    if not isinstance(extra, dict):
        raise TypeError(f"RunConfig.{name} is not declared with setting()")
    bounds = {
        key: getattr(item, key) for item in field.metadata for key in ("ge", "gt", "le", "lt") if hasattr(item, key)
    }
    required = field.default is PydanticUndefined
    return Setting(
        name=name,
        label=str(extra["label"] or name.replace("_", " ").capitalize()),
        sentence=field.description or "",
        group=Group(str(extra["group"])),
        advanced=bool(extra["advanced"]),
        kind=_kind(types),
        default=None if required else field.default,
        required=required,
        optional=optional,
        choices=tuple(str(choice.value) for choice in types[0]) if issubclass(types[0], StrEnum) else (),
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
            return "is neither true nor false.", "Give true or false."
        case "number" | "integer" if detail["type"].endswith(("_parsing", "_type", "_from_float")):
            return (
                f"is not {'a whole number' if known.kind == 'integer' else 'a number'}.",
                f"Give a number{bounds}{default}.",
            )
        case "number" | "integer" if detail["type"] == "value_error":
            return f"{detail['ctx']['error']}.", f"Give a number{bounds}{default}."
        case "number" | "integer":
            return "is out of bounds.", f"Give a number{bounds}{default}."
        case _:
            told = str(detail["ctx"]["error"]) if detail["type"] == "value_error" else detail["msg"]
            return f"{told[0].lower()}{told[1:].removesuffix('.')}.", known.sentence


def _choice(given: str, choices: tuple[str, ...]) -> str:
    """All choices where they are few; of many the one that was probably meant, or where they are listed."""
    from difflib import get_close_matches

    if len(choices) <= _FEW_CHOICES:
        return f"Choose {', '.join(choices)}."
    close = get_close_matches(given.lower(), choices, n=1)
    more = len(choices) - _NAMED_CHOICES
    named = f"Choose {', '.join(choices[:_NAMED_CHOICES])}, or one of {more} more in docs/configuration.md."
    return f"Did you mean {close[0]}? {named}" if close else named


_FEW_CHOICES, _NAMED_CHOICES = 15, 3


def _nearest(name: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, settings(), n=1)
    return f"Did you mean {close[0]}?" if close else "docs/configuration.md lists every setting."


def _plain(value: Any) -> str:
    return _number(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def _number(value: float | None) -> str:
    return f"{value:g}" if isinstance(value, float) else f"{value}"
