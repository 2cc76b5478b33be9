"""Reads configuration files of other programs and translates every key."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from training.config import yaml_text
from training.config.fields import ConfigError, parse
from training.config.run_config import RunConfig
from training.deepspeed_file import reader as deepspeed_reader
from training.errors import UserError
from training.foreign.data_sets import of_axolotl, of_llamafactory
from training.foreign.entries import Answer, Entry, Outcome, Rule, Values, entry, is_off
from training.foreign.programs import AXOLOTL, LLAMAFACTORY, PROGRAMS, Program, recognized
from training.foreign.sharding_files import from_deepspeed, from_fsdp, looks_like_deepspeed

_STAND_INS = {"model": "MODEL", "data": "DATA"}
_NOT_GIVEN = "is not given: {0}'s default."
_UNKNOWN = "Lathe does not know this key of {0}."
_DATA_KEYS = {
    LLAMAFACTORY.name: ("dataset", "train_dataset", "eval_dataset"),
    AXOLOTL.name: ("datasets", "test_datasets"),
}
_PARTS = ("", "..", "../..", "../../..")


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


def import_files(paths: Sequence[Path]) -> Imported:
    """Translates files; a later one adds to an earlier one and overrides it.

    Raises:
        UserError: a file cannot be read, or is of no known program.
    """
    return together([import_text(_text(path), path.parent, str(path)) for path in paths])


def import_text(text: str, folder: Path | None, name: str = "") -> Imported:
    """Translates one file's text: YAML, JSON or a shell command. Paths in it start from `folder`; without one, no file is read.

    Raises:
        UserError: the text is of no known program.
    """
    values = _values(text, name)
    program = recognized(values)
    if program is None:
        known = ", ".join(one.name for one in PROGRAMS)
        raise UserError(
            "file", name, f"is not a configuration of {known}.", "Give one of theirs, or the flags of a command."
        )
    entries = [_entry(program, str(key), value, values, folder) for key, value in values.items()]
    return _checked(program, entries + _defaults(program, values, folder))


def together(parts: Sequence[Imported]) -> Imported:
    """Several translations as one."""
    settings: Values = {}
    for part in parts:
        settings |= part.settings
    return Imported(
        tuple(dict.fromkeys(name for part in parts for name in part.programs)),
        tuple(one for part in parts for one in part.entries),
        settings,
    )


def _entry(program: Program, key: str, value: Any, values: Values, folder: Path | None) -> Entry:
    if (special := _special(program, key, value, values, folder)) is not None:
        return entry(key, value, special)
    rule = _rule(program, key)
    if rule is None:
        if is_off(value):
            return Entry(key, value, Outcome.NO_EFFECT, note="is off.")
        close = get_close_matches(key, program.table, 1, 0.8)
        hint = f" Did you mean {close[0]}?" if close else ""
        return Entry(key, value, Outcome.UNSUPPORTED, note=_UNKNOWN.format(program.name) + hint)
    return entry(key, value, rule(value, values))


def _rule(program: Program, key: str) -> Rule | None:
    if key in program.table:
        return program.table[key]
    return next((rule for start, rule in program.prefixes.items() if key.startswith(start)), None)


def _special(program: Program, key: str, value: Any, values: Values, folder: Path | None) -> Answer | None:
    """The answer for keys that name files or hold sections of another program."""
    if key in ("deepspeed", "deepspeed_config", "deepspeed_config_file"):
        return _deepspeed(value, folder)
    if key in ("fsdp", "fsdp_config") and not is_off(value):
        return Answer(from_fsdp(value if isinstance(value, dict) else {}))
    if key not in _DATA_KEYS.get(program.name, ()):
        return None
    if folder is None:
        return Answer(None, "upload the file on the page Data sets, then pick it.")
    setting = "validation_data" if key in ("eval_dataset", "test_datasets") else "data"
    if program is AXOLOTL:
        return of_axolotl(value, folder, setting)
    return of_llamafactory(value, values, folder, setting)


def _deepspeed(value: Any, folder: Path | None) -> Answer:
    if is_off(value):
        return Answer({}, "is empty.")
    if isinstance(value, dict):
        stage = value.get("zero_stage")
        if stage is None:
            return Answer(from_deepspeed(value))
        offloads = {name: value.get(f"{name}_device") for name in ("offload_optimizer", "offload_param")}
        return Answer(
            {"strategy": f"zero{stage}"} | {name: where for name, where in offloads.items() if where in ("cpu", "nvme")}
        )
    if str(value).lstrip().startswith("{"):
        return _of_json(str(value), "the text")
    for path in [folder / part / str(value) for part in _PARTS] if folder else []:
        try:
            return _of_json(path.read_text(encoding="utf-8"), str(path))
        except (OSError, ValueError):  # not there; ValueError: no text
            continue
    return Answer(None, f"{str(value)[:200]} is not here. Import that file too, or set strategy.")


def _of_json(text: str, name: str) -> Answer:
    """The settings of a DeepSpeed JSON, with comments or without."""
    try:
        file = deepspeed_reader.read(text).values
    except deepspeed_reader.LooseJsonError as error:
        return Answer(None, f"{name} is not valid JSON: {error}.")
    return Answer(from_deepspeed(file)) if looks_like_deepspeed(file) else Answer(None, f"{name} is no DeepSpeed file.")


def _defaults(program: Program, values: Values, folder: Path | None) -> list[Entry]:
    """The program's defaults for keys that are missing and that Lathe would fill otherwise."""
    note = _NOT_GIVEN.format(program.name)
    shared = {"warmup_ratio": "warmup_steps"}
    absent = {
        key: value for key, value in program.defaults.items() if key not in values and shared.get(key) not in values
    }
    entries = []
    for key, value in absent.items():
        one = _entry(program, key, value, values | {key: value}, folder)
        if one.settings:
            entries.append(Entry(key, None, Outcome.TRANSLATED, one.settings, note))
    return entries


def _checked(program: Program, entries: list[Entry]) -> Imported:
    """The translation without values that Lathe refuses; each is reported with its reason."""
    settings: Values = {}
    for one in entries:
        settings |= {
            name: value for name, value in one.settings.items() if name not in settings or one.value is not None
        }
    try:
        parse(_STAND_INS | {name: value for name, value in settings.items() if value is not None})
    except ConfigError as error:
        wrong = {problem.field: problem for problem in error.problems}
        kept = {name: value for name, value in settings.items() if name not in wrong}
        entries = [
            Entry(one.key, one.value, Outcome.UNSUPPORTED, note=f"{wrong[bad[0]].message} {wrong[bad[0]].fix}".strip())
            if (bad := [name for name in one.settings if name in wrong])
            else one
            for one in entries
        ]
        return Imported((program.name,), tuple(entries), kept)
    return Imported((program.name,), tuple(entries), settings)


def values_of(path: Path) -> Any:
    """The values of a file: a mapping, or the flags of a command; empty if it has neither.

    Raises:
        UserError: it cannot be read, or is not valid.
    """
    return _values(_text(path), str(path))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(
            "file", str(path), f"cannot be read: {error.strerror}.", "Check the path and its permissions."
        ) from None
    except UnicodeDecodeError:
        raise UserError(
            "file", str(path), "is not UTF-8 text.", "Give a YAML or JSON file, or a shell script."
        ) from None


def _values(text: str, name: str) -> Any:
    """The values of a text: a YAML or JSON mapping, else the flags of a command."""
    try:
        values = yaml_text.load(text)
    except yaml_text.YamlTextError as error:
        values = None
        if not _flags(text):
            raise UserError(
                "file", name, f"is not valid YAML or JSON: {error}", "Correct it, or give a command."
            ) from None
    return values if isinstance(values, dict) else _flags(text)


def _flags(text: str) -> Values:
    """The flags of the first command in a shell text: `--name value`, `--name=value`, `--name` (true)."""
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError:
        return {}
    flags: Values = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            flags[name] = _number(value) if equals else True
            name = "" if equals else name
        elif name:
            value = _number(word)
            flags[name] = (
                value
                if flags[name] is True
                else [*(flags[name] if isinstance(flags[name], list) else [flags[name]]), value]
            )
    return flags


def _plain(value: Any) -> Any:
    """The value if JSON has it, else its text: YAML has dates, NaN and bytes too."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return str(value)
    return value


def _number(word: str) -> Any:
    """The word as YAML reads it, and numbers such as 1e-5, which YAML takes for text."""
    try:
        value = yaml_text.load(word)
    except yaml_text.YamlTextError:
        return word
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value
