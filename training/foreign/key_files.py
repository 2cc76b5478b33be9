"""Reads the keys whose rule is plain from NAME.toml in this folder; keys that need a decision are functions in NAME.py.

A file has the keys that are a run's setting by the same name (`same`) or by another (`settings`; `lists` for several names), the
settings of a key that is on or off (`when_on`, `when_off`), keys of which Lathe has one value only (`usual`: value and note), and,
by their note, keys that change nothing in Lathe (`ignored`) and those that Lathe does not support (`refused`). `prefixes` has
rules for the beginnings of keys.
"""

import tomllib
from pathlib import Path
from typing import Any

from training.foreign.entries import Table, flag, ignored, listed, refused, to, usual


def read(name: str) -> tuple[Table, Table]:
    """The rules for keys, and those for beginnings of keys."""
    file = tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8"))
    return _rules(file), _rules(file.get("prefixes", {}))


def _rules(file: dict[str, Any]) -> Table:
    off = file.get("when_off", {})
    return {
        **{key: to(key) for key in file.get("same", ())},
        **{key: to(setting) for key, setting in file.get("settings", {}).items()},
        **{key: listed(setting) for key, setting in file.get("lists", {}).items()},
        **{key: flag(on, off.get(key)) for key, on in file.get("when_on", {}).items()},
        **{key: usual(value, note) for key, (value, note) in file.get("usual", {}).items()},
        **{key: ignored(note) for note, keys in file.get("ignored", {}).items() for key in keys},
        **{key: refused(note) for note, keys in file.get("refused", {}).items() for key in keys},
    }
