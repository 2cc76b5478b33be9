"""Reads configuration files of other programs and translates every key."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from training.config.fields import ConfigError, parse
from training.config.run_config import RunConfig
from training.errors import UserError
from training.foreign.axolotl import keys_of_sets
from training.foreign.entries import (
    IS_EMPTY,
    IS_OFF,
    Answer,
    Entry,
    Outcome,
    Rule,
    Values,
    as_number,
    counting,
    entry,
    is_off,
)
from training.foreign.inputs import Given, given
from training.foreign.launch_keys import unread_section
from training.foreign.programs import AXOLOTL, Program
from training.foreign.sharding import of_deepspeed, of_fsdp
from training.foreign.shell_values import Unresolved
from training.nearest import nearest

_TEXTS = frozenset(name for name, field in RunConfig.model_fields.items() if field.annotation in (str, str | None))
_STAND_INS = {"model": "MODEL", "data": "DATA"}
_NOT_GIVEN = "is not given: {0}'s default."
_UNSEEN = " {0} is not here, and may have its own: import the command from its folder."
_UNKNOWN = "Lathe does not know this key of {0}."


@dataclass(frozen=True)
class Imported:
    """The translation of files: the programs, an entry for each key, and the settings of a run."""

    programs: tuple[str, ...]
    entries: tuple[Entry, ...]
    settings: Values

    @property
    def missing(self) -> list[str]:
        """The required settings that no file gives."""
        return [name for name in _STAND_INS if not self.settings.get(name)]

    def config(self) -> RunConfig:
        """The configuration, with MODEL and DATA for a model and data that are missing."""
        return parse(_STAND_INS | {name: value for name, value in self.settings.items() if value is not None})

    def document(self) -> Values:
        """As a JSON value."""
        keys = [vars(one) | {"value": _plain(one.value), "outcome": one.outcome.value} for one in self.entries]
        return {"programs": list(self.programs), "missing": self.missing, "settings": self.settings, "keys": keys}

    @classmethod
    def from_document(cls, document: Values) -> "Imported":
        """The translation of which `document` is the JSON value."""
        entries = (Entry(**one | {"outcome": Outcome(one["outcome"])}) for one in document["keys"])
        return cls(tuple(document["programs"]), tuple(entries), document["settings"])


def import_files(paths: Sequence[Path]) -> Imported:
    """Translates files; a later one adds to an earlier one and overrides it. Raises UserError if a file cannot be read, or is of
    no known program."""
    return together([import_text(_text(path), path.parent, str(path)) for path in paths])


def import_text(text: str, folder: Path | None, name: str = "") -> Imported:
    """Translates one file's text: YAML, JSON or a shell command. Paths in it start from `folder`; without one, no file is read.
    Raises UserError if the text is of no known program."""
    source = given(text, folder, name)
    launcher: list[Entry] = []
    if source.launcher is not None:
        launcher = _entries(source.launcher, source.options, source)
        launcher += _defaults(source.launcher, source.options, source, launcher)
    own = _entries(source.program, source.values, source)
    known = {name: value for name, value in _composed(launcher).items() if name == "num_processes"}
    defaults = _defaults(source.program, source.values, source, own, known) if source.complete else []
    return _checked(source.program, counting([source.entries, launcher, own, defaults]))


def together(parts: Sequence[Imported]) -> Imported:
    """Several translations as one: a later one overrides, but its defaults do not."""
    entries = tuple(counting([part.entries for part in parts]))
    programs = dict.fromkeys(name for part in parts for name in part.programs)
    return Imported(tuple(programs), entries, _composed(entries))


def _entries(program: Program, values: Values, source: Given) -> list[Entry]:
    entries = []
    numbers = {key: as_number(value) for key, value in values.items()}
    for key, value in values.items():
        one = _unless_empty(_entry(program, str(key), numbers[key], numbers, source))
        entries.append(replace(one, value=value, settings=_as_texts(one.settings, value)))
        if program is AXOLOTL and key in program.data | program.held_out:
            entries += keys_of_sets(str(key), value)
    return entries


def _entry(program: Program, key: str, value: Any, values: Values, source: Given) -> Entry:
    if isinstance(value, Unresolved):
        return Entry(key, str(value), Outcome.UNSUPPORTED, note=f"{value.reason}.")
    if (special := _special(program, key, value, values, source)) is not None:
        return entry(key, value, special)
    rule, meant = _rule(program, key), value
    if rule is None and key.startswith("no_") and value is True:  # of a default of true in transformers' parser
        rule, meant = _rule(program, key[3:]), False
    if rule is None:
        if is_off(value):
            return entry(key, value, IS_OFF)
        close = nearest(key, program.table, cutoff=0.8)
        hint = f" Did you mean {close[0]}?" if close else ""
        return Entry(key, value, Outcome.UNSUPPORTED, note=_UNKNOWN.format(program.name) + hint)
    return entry(key, value, rule(meant, values))


def _as_texts(settings: Values, written: Any) -> Values:
    """The settings with a text for each number that is one in Lathe, such as the name of a run."""
    return {
        name: str(written if as_number(written) == value else value)
        if name in _TEXTS and isinstance(value, (int, float))
        else value
        for name, value in settings.items()
    }


def _unless_empty(one: Entry) -> Entry:
    """A key without a value is as one that is not given, but for the task that has such a key.

    Null stays unsupported where the program means something by it that Lathe does not have.
    """
    if one.value is not None or one.outcome is Outcome.UNSUPPORTED:
        return one
    task = {name: value for name, value in one.settings.items() if name == "task"}
    return entry(one.key, None, replace(IS_EMPTY, settings=task))


def _rule(program: Program, key: str) -> Rule | None:
    if key in program.table:
        return program.table[key]
    return next((rule for start, rule in program.prefixes.items() if key.startswith(start)), None)


def _special(program: Program, key: str, value: Any, values: Values, source: Given) -> Answer | None:
    """The answer for keys that name files or hold sections of another program."""
    if key in ("deepspeed", "deepspeed_config", "deepspeed_config_file"):
        unread = unread_section("deepspeed", values) if isinstance(value, dict) else None
        return unread or of_deepspeed(value, source.nearby.text)
    if key in ("fsdp", "fsdp_config") and not is_off(value):
        unread = None if program is AXOLOTL else unread_section("fsdp", values)
        return unread or of_fsdp(values.get("fsdp"), values.get("fsdp_config"), source.nearby.text)
    if key not in program.data | program.held_out:
        return None
    setting = "validation_data" if key in program.held_out else "data"
    return program.datasets(value, values, source.nearby.folder, setting)


def _defaults(
    program: Program, values: Values, source: Given, own: Sequence[Entry], known: Values | None = None
) -> list[Entry]:
    """The program's defaults for keys that are missing and that Lathe would fill otherwise, unless other keys give the settings."""
    note = _NOT_GIVEN.format(program.name)
    note += _UNSEEN.format(source.unseen) if source.unseen and program is source.program else ""
    values = {key: as_number(value) for key, value in values.items()}
    filled = program.defaults(values | (known or {}))
    empty = {one.key for one in own if one.value in (None, "", []) and one.outcome is Outcome.NO_EFFECT}
    absent = {key: value for key, value in filled.items() if key not in values or key in empty}
    taken = _composed(own)
    entries = []
    for key, value in absent.items():
        one = _entry(program, key, value, values | absent, source)
        settings = {name: setting for name, setting in one.settings.items() if name not in taken}
        if settings:
            reason = "" if one.note in (IS_OFF.note, IS_EMPTY.note) else f" {one.note[:1].upper()}{one.note[1:]}"
            entries.append(Entry(key, None, Outcome.TRANSLATED, settings, (note + reason).strip()))
        elif one.outcome is Outcome.UNSUPPORTED and not one.settings:
            begin = "" if one.note.startswith("is not given") else "is not given: "
            entries.append(replace(one, value=None, note=begin + one.note))
    return entries


def _composed(entries: Sequence[Entry]) -> Values:
    """The settings of all entries: a later one overrides, but not a default, which has no value."""
    settings: Values = {}
    for one in sorted(entries, key=lambda one: one.value is not None):
        settings |= one.settings
    return settings


def _checked(program: Program, entries: list[Entry]) -> Imported:
    """The translation without values that Lathe refuses; each is reported with its reason."""
    settings = _composed(entries)
    try:
        parse(_STAND_INS | {name: value for name, value in settings.items() if value is not None})
    except ConfigError as error:
        reasons = {problem.field: f"{problem.message} {problem.fix}".strip() for problem in error.problems}
        settings = {name: value for name, value in settings.items() if name not in reasons}
        for place, one in enumerate(entries):
            if wrong := next((name for name in one.settings if name in reasons), None):
                entries[place] = Entry(one.key, one.value, Outcome.UNSUPPORTED, note=reasons[wrong])
    return Imported((program.name,), tuple(entries), settings)


def foreign_program(path: Path) -> str | None:
    """The name of the program whose configuration a file is; None if it is Lathe's own, or of none of them. Raises UserError if
    it cannot be read."""
    try:
        source = given(_text(path), path.parent, str(path))
    except UserError:
        return None
    return None if {"model", "data"} <= source.values.keys() else source.program.name


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        message, fix = f"cannot be read: {error.strerror}.", "Check the path and its permissions."
    except UnicodeDecodeError:
        message, fix = "is not UTF-8 text.", "Give a YAML or JSON file, or a shell script."
    raise UserError("file", str(path), message, fix)


def _plain(value: Any) -> Any:
    """The value if JSON has it, else its text: YAML has dates, NaN and bytes too."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return str(value)
    return value
