"""The causes of failure that Lathe recognizes, read from this folder's TOML files, one a subject.

To add a cause, add a table to its subject's file and a log to tests/logs. The fields of a table are those of `Cause`, and
those of a sign those of `Sign`. A sign's condition is `when = "NAME"`, a function of worker/diagnosis/conditions.py,
or `NAME = 'PATTERN'` for one that takes a pattern. `{{name}}` stands for the text of that name in the file's `fragments`, or
in fragments.toml.
"""

import re
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from worker.diagnosis import conditions
from worker.diagnosis.argument_analysis import analyze_argument, is_between_packages, is_renamed, is_unknown_setting
from worker.diagnosis.cause import Analysis, Cause, CauseKind, Sign, When
from worker.diagnosis.hang_analysis import analyze_hang, analyze_kill
from worker.diagnosis.oom_analysis import analyze_memory
from worker.diagnosis.own_code_analysis import analyze_own_code, in_own_code
from worker.diagnosis.package_analysis import analyze_library, analyze_package, in_checkout, in_library
from worker.diagnosis.stack_analysis import analyze_stack

_FRAGMENT = re.compile(r"\{\{(\w+)\}\}")
_ANALYSES: dict[str, Analysis] = {
    "analyze_argument": analyze_argument, "analyze_hang": analyze_hang, "analyze_kill": analyze_kill,
    "analyze_memory": analyze_memory, "analyze_own_code": analyze_own_code,
    "analyze_stack": analyze_stack, "analyze_library": analyze_library, "analyze_package": analyze_package,
}  # fmt: skip
_CONDITIONS: dict[str, When] = {
    "in_library": in_library,
    "in_checkout": in_checkout,
    "in_own_code": in_own_code,
    "is_between_packages": is_between_packages,
    "is_renamed": is_renamed,
    "is_unknown_setting": is_unknown_setting,
    **conditions.PLAIN,
}


def _table(name: str) -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8"))


def _read(subject: str) -> Iterator[Cause]:
    """The causes of a subject's file."""
    causes = _table(subject)
    fragments = _table("fragments") | causes.pop("fragments", {})
    for name, cause in causes.items():
        yield _cause(name, **_complete(cause, fragments))


def _complete(value: Any, fragments: dict[str, str]) -> Any:
    """The value with fragments in the place of their names."""
    if isinstance(value, dict):
        return {key: _complete(part, fragments) for key, part in value.items()}
    if isinstance(value, list):
        return [_complete(part, fragments) for part in value]
    return _FRAGMENT.sub(lambda match: fragments[match[1]], value) if isinstance(value, str) else value


def _cause(name: str, *, signs: list[dict[str, Any]], fix: list[str], analyze: str = "", **fields: Any) -> Cause:
    analysis = _ANALYSES[analyze] if analyze else None
    return Cause(name, signs=tuple(_sign(**one) for one in signs), fix=tuple(fix), analyze=analysis, **fields)


def _sign(
    *, pattern: str, kind: str = "error", inside: str = "", when: str = "", fix: tuple[str, ...] = (), **fields: Any
) -> Sign:
    holds = [_CONDITIONS[when]] if when else []
    for name in fields.keys() & conditions.OF_PATTERN.keys():
        holds.append(partial(conditions.OF_PATTERN[name], pattern=re.compile(fields.pop(name))))
    frame = re.compile(inside) if inside else None
    return Sign(
        re.compile(pattern, re.M),
        kind=CauseKind[kind.upper()],
        inside=frame,
        when=tuple(holds),
        fix=tuple(fix),
        **fields,
    )


_SUBJECTS = {
    "Memory": ("memory",),
    "Numbers": ("numerics",),
    "Data and tokenizers": ("data", "tokens"),
    "Models, adapters and checkpoints": ("model", "checkpoints"),
    "Settings": ("settings",),
    "Several processes": ("distributed",),
    "Sharded and copied weights": ("sharding",),
    "Files": ("files",),
    "The hub and other services": ("hub",),
    "GPUs and drivers": ("devices",),
    "Installation": ("compilation", "install"),
    "Processes": ("ended",),
}
BY_SUBJECT = {title: tuple(cause for name in names for cause in _read(name)) for title, names in _SUBJECTS.items()}
CAUSES = tuple(cause for group in BY_SUBJECT.values() for cause in group)
