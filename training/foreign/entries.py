"""What becomes of a key of another program's configuration, and the rules that decide it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Values = dict[str, Any]


class Outcome(StrEnum):
    """What becomes of a key."""

    TAKEN = "taken"
    TRANSLATED = "translated"
    NO_EFFECT = "without effect here"
    UNSUPPORTED = "not supported"


@dataclass(frozen=True)
class Entry:
    """A key with its value, what becomes of it, the settings it gives, and a note: why, or the nearest."""

    key: str
    value: Any
    outcome: Outcome
    settings: Values = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Answer:
    """A rule's answer: the settings that a value gives, or None if it is not supported; and a note."""

    settings: Values | None
    note: str = ""


Rule = Callable[[Any, Values], Answer]
"""A function of a key's value and of all values of the file."""
Table = Mapping[str, Rule]


def entry(key: str, value: Any, answer: Answer) -> Entry:
    """The entry of a key: taken if one setting has the same value, translated if settings differ."""
    if answer.settings is None:
        return Entry(key, value, Outcome.UNSUPPORTED, note=answer.note)
    if not answer.settings:
        return Entry(key, value, Outcome.NO_EFFECT, note=answer.note)
    same = list(answer.settings.values()) == [value]
    return Entry(key, value, Outcome.TAKEN if same else Outcome.TRANSLATED, answer.settings, answer.note)


def to(setting: str, note: str = "") -> Rule:
    """The value as a setting; null gives nothing."""
    return lambda value, _: Answer(
        {} if value is None else {setting: value}, note or ("" if value is not None else "is empty.")
    )


def choice(setting: str, names: Mapping[Any, Any], nearest: str = "") -> Rule:
    """A value of a list of names as a choice of Lathe; others are not supported, and `nearest` is used."""

    def rule(value: Any, _: Values) -> Answer:
        known = {str(name).lower(): chosen for name, chosen in names.items()}
        if value is None or value == "":
            return Answer({}, "is empty.")
        if str(value).lower() in known:
            return Answer({setting: known[str(value).lower()]})
        return Answer(None, f"Lathe has no {setting} like this; {nearest} is the nearest." if nearest else "")

    return rule


def flag(when_true: Values, when_false: Values | None = None, note: str = "") -> Rule:
    """Settings for a value that is on, and for one that is off (nothing by default)."""

    def rule(value: Any, _: Values) -> Answer:
        return Answer(when_true if is_on(value) else when_false or {}, note if is_on(value) else "is off.")

    return rule


def ignored(note: str) -> Rule:
    """A key that changes nothing in Lathe."""
    return lambda _, __: Answer({}, note)


def listed(setting: str) -> Rule:
    """Names as a setting that takes several; none give nothing."""
    return lambda value, _: Answer({} if is_off(value) else {setting: names(value)})


def usual(value: Any, note: str) -> Rule:
    """A key that Lathe has only with this value, the program's default."""
    return lambda given, _: Answer({}, note) if given in (value, None) else Answer(None, note)


def refused(note: str) -> Rule:
    """A key that Lathe does not support, unless it is off or empty."""
    return lambda value, _: Answer({}, "is off.") if is_off(value) else Answer(None, note)


def is_on(value: Any) -> bool:
    """True for true, and for the text of it."""
    return value is True or str(value).strip().lower() in ("true", "yes", "on", "1")


def is_off(value: Any) -> bool:
    """True for null, false, and empty values."""
    return value in (None, False, "", [], {}) or str(value).strip().lower() in ("false", "no", "none", "null", "off")


def names(value: Any) -> str:
    """Names as Lathe writes them: separated by commas."""
    return ",".join(str(one) for one in value) if isinstance(value, (list, tuple)) else str(value)
