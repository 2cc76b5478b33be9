"""What becomes of a key of another program's configuration, and the rules that decide it.

Rules that need no decision are in the TOML file of their program in this folder, the others are functions in the module beside it.
"""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

Values = dict[str, Any]
_INTEGER = re.compile(r"[+-]?\d{1,18}")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?")


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


IS_OFF = Answer({}, "is off.")
IS_EMPTY = Answer({}, "is empty.")
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


def counting(groups: Sequence[Sequence[Entry]]) -> list[Entry]:
    """All entries, each with those of its settings that count; the others are named with the key that counts instead.

    A later group overrides an earlier one, and a value overrides the default of a key that is not given, which has no value.
    Within a group the order of keys decides nothing, since it means nothing to the programs.
    """
    ranked = [one for group in groups for one in sorted(group, key=lambda one: one.key)]
    winners = {name: one for one in sorted(ranked, key=lambda one: one.value is not None) for name in one.settings}
    return [_counting(one, winners) for group in groups for one in group]


def _counting(one: Entry, winners: Mapping[str, Entry]) -> Entry:
    lost = {name: winners[name] for name, value in one.settings.items() if winners[name].settings[name] != value}
    if not lost:
        return one
    kept = {name: value for name, value in one.settings.items() if name not in lost}
    by_key = {winner.key: winner.settings[name] for name, winner in lost.items()}
    note = " ".join(f"{key} counts instead, with {value}." for key, value in by_key.items())
    return replace(
        one, settings=kept, note=f"{one.note} {note}".strip(), outcome=one.outcome if kept else Outcome.NO_EFFECT
    )


@dataclass(frozen=True)
class KeyFile:
    """A program's keys whose rule is plain, rules for beginnings of keys, values that the program uses for missing keys, and all
    tables of the file."""

    rules: Table
    prefixes: Table
    defaults: Values
    tables: Values


def read(name: str, shared: Table | None = None) -> KeyFile:
    """Reads NAME.toml; `shared` are the rules that its section `like` names.

    Keys with a setting by the same name are in `same`, by another in `settings`, `or_zero` (empty values are 0), `unless_off` and
    `lists` (several names). `choices` translates values; `when_on` and `when_off` have the settings of switches, `cases` those of
    values; of `usual` keys Lathe has one value only, with the note for others; `like` gives a key the rule of another. `ignored`
    keys change nothing in Lathe and `refused` ones are not supported, by note. `prefixes` has rules for beginnings of keys,
    `defaults` the values of missing keys.
    """
    file = tables(name)
    return KeyFile(_rules(file, shared or {}), _rules(file.get("prefixes", {}), {}), file.get("defaults", {}), file)


def tables(name: str) -> Values:
    """The tables of NAME.toml."""
    return tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8"))


def _rules(file: dict[str, Any], shared: Table) -> Table:
    off = file.get("when_off", {})
    return {
        **{key: to(key) for key in file.get("same", ())},
        **{key: to(setting) for key, setting in file.get("settings", {}).items()},
        **{key: or_zero(setting) for key, setting in file.get("or_zero", {}).items()},
        **{key: unless_off(setting) for key, setting in file.get("unless_off", {}).items()},
        **{key: listed(setting) for key, setting in file.get("lists", {}).items()},
        **{key: choice(**options) for key, options in file.get("choices", {}).items()},
        **{key: flag(on, off.get(key)) for key, on in file.get("when_on", {}).items()},
        **{key: cases(options) for key, options in file.get("cases", {}).items()},
        **{key: usual(value, note) for key, (value, note) in file.get("usual", {}).items()},
        **{key: shared[other] for key, other in file.get("like", {}).items()},
        **{key: ignored(note) for note, keys in file.get("ignored", {}).items() for key in keys},
        **{key: refused(note) for note, keys in file.get("refused", {}).items() for key in keys},
    }


def to(setting: str, note: str = "") -> Rule:
    """The value as a setting; null gives nothing."""
    return lambda value, _: Answer({}, note or IS_EMPTY.note) if value is None else Answer({setting: value}, note)


def choice(setting: str, values: Mapping[str, Any], nearest: str = "") -> Rule:
    """A value of a list of names as a choice of Lathe; others are not supported, and `nearest` is used."""

    def rule(value: Any, _: Values) -> Answer:
        if value is None or value == "":
            return IS_EMPTY
        if str(value).lower() in values:
            return Answer({setting: values[str(value).lower()]})
        return Answer(None, f"Lathe has no {setting} like this; {nearest} is the nearest." if nearest else "")

    return rule


def flag(when_true: Values, when_false: Values | None = None) -> Rule:
    """Settings for a value that is on, and for one that is off (nothing by default)."""
    return lambda value, _: Answer(when_true) if is_on(value) else Answer(when_false or {}, IS_OFF.note)


def cases(options: Sequence[Values]) -> Rule:
    """The first option whose list `when` has the value (`on` and `off` for what means this); the last one has no list.

    An option is `refused` with a note, or has `settings`, or the `setting` that takes the value, and a `note`.
    """

    def rule(value: Any, _: Values) -> Answer:
        words = {str(value).lower(), "on" if is_on(value) else "off" if is_off(value) else ""}
        option = next(one for one in options if not words.isdisjoint(one.get("when", words)))
        if "refused" in option:
            return Answer(None, option["refused"])
        passed = {option["setting"]: value} if "setting" in option else {}
        return Answer(option.get("settings", {}) | passed, option.get("note", ""))

    return rule


def ignored(note: str) -> Rule:
    """A key that changes nothing in Lathe."""
    return lambda _, __: Answer({}, note)


def listed(setting: str) -> Rule:
    """Names as a setting that takes several; none give nothing."""
    return lambda value, _: Answer({} if is_off(value) else {setting: names(value)})


def unless_off(setting: str) -> Rule:
    """The value as a setting, unless it is off or empty."""
    return lambda value, _: IS_OFF if is_off(value) else Answer({setting: value})


def refused(note: str) -> Rule:
    """A key that Lathe does not support, unless it is off or empty."""
    return lambda value, _: IS_OFF if is_off(value) else Answer(None, note)


def only_if(holds: Callable[[Values], bool], rule: Rule, note: str) -> Rule:
    """A key that changes nothing, with this note, unless something holds for all values."""
    return lambda value, values: rule(value, values) if holds(values) else Answer({}, note)


def usual(value: Any, note: str) -> Rule:
    """A key that Lathe has only with this value, the program's default."""
    return lambda given, _: Answer({}, note) if given in (value, None) else Answer(None, note)


def or_zero(setting: str) -> Rule:
    """The value as a setting, 0 if it is empty."""
    return lambda value, _: Answer({setting: value or 0})


def is_on(value: Any) -> bool:
    """True for true, and for the text of it."""
    return value is True or str(value).strip().lower() in ("true", "yes", "on", "1")


def is_off(value: Any) -> bool:
    """True for null, false, and empty values."""
    return value in (None, False, "", [], {}) or str(value).strip().lower() in ("false", "no", "none", "null", "off")


def as_number(value: Any) -> Any:
    """The number that a text writes, such as `'4'` or `2e-4`, which YAML reads as text; other values as they are."""
    text = value.strip() if type(value) is str else ""
    if _INTEGER.fullmatch(text):
        return int(text)
    if not _NUMBER.fullmatch(text):
        return value
    number = float(text)
    return int(number) if "." not in text and number.is_integer() else number


def names(value: Any) -> str:
    """Names as Lathe writes them: separated by commas."""
    return ",".join(str(one) for one in value) if isinstance(value, (list, tuple)) else str(value)
