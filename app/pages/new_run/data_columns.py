"""Which columns of a run's data sets have which role: what is offered on New run, and the changes that it sends. No components."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.pages.common import mapped_rows
from app.pages.common.mapping import KINDS, for_kind, kind_of, missing_roles, partial, paths
from app.texts import _
from training.config.task import Task
from training.data.content_mapping import suggest_by_any
from training.data.mapping import format_of, write_mapping
from training.data.row_formats import UNKNOWN
from training.tokens.parts import misfit
from worker.store.tables import Dataset

ALONE = -1
"""The place of the only data set of a run, whose mapping is the setting `columns`; others are the places in `data`."""


@dataclass(frozen=True)
class ColumnChoice:
    """The mapping of a data set, as chosen (`is_set`) or as suggested, with its first row; `place` is where it is stored."""

    item: Dataset
    place: int
    mapping: dict[str, str]
    kind: str
    kinds: list[tuple[str, str]]
    paths: list[str]
    is_set: bool

    @property
    def line(self) -> str:
        """The mapping as text."""
        return write_mapping(self.mapping)

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that the kind of rows has."""
        return KINDS[self.kind][1]

    @property
    def missing(self) -> list[str]:
        """The roles that still need a column."""
        return missing_roles(self.mapping, self.kind)

    @property
    def preview(self) -> list[dict[str, Any]]:
        """The first row as the model sees it; none while a role is missing."""
        return mapped_rows.preview(self.item, self.mapping, self.kind)[:1]


def choice(item: Dataset, columns: str, task: str, place: int) -> ColumnChoice | None:
    """What to choose for a data set that needs a mapping, or that the run maps; None for others."""
    if not columns and (item.columns_map or item.row_format != UNKNOWN):
        return None
    return _choice(item, columns, _task(task), place)


def _choice(item: Dataset, columns: str, task: Task, place: int) -> ColumnChoice:
    fitting = _fitting(task)
    mapping = partial(columns) if columns else _suggested(item, fitting)
    kinds = [(name, _(KINDS[name][0])) for name in fitting]
    return ColumnChoice(item, place, mapping, _kind(mapping, fitting), kinds, paths(item.sample), bool(columns))


def changed(item: Dataset, columns: str, task: str, change: Mapping[str, Any]) -> str:
    """The mapping of a data set after a change from the page: another kind of rows, another column of a role, or all of it."""
    key, value = str(change.get("key")), str(change.get("value") or "")
    shown = _choice(item, columns, _task(task), ALONE)
    if key == "columns":
        return value or _detected(item)
    if key == "kind" and value in KINDS:
        return write_mapping(_filled(for_kind(shown.mapping, value, shown.paths), value, shown.paths))
    role = key.removeprefix("role.")
    kept = {name: path for name, path in shown.mapping.items() if name in shown.roles and name != role}
    chosen = {name: value if name == role else kept.get(name, "") for name in (*shown.roles,)}
    return write_mapping({name: path for name, path in chosen.items() if path})


def still_fitting(columns: str, item: Dataset | None) -> str:
    """The mapping if a data set has all of its columns, else none: it was that of another data set."""
    names = set(paths(item.sample)) | set(item.columns) if item else set()
    return columns if item is None or set(partial(columns).values()) <= names else ""


def _task(name: str) -> Task:
    """The task of the form; the usual one while none is chosen."""
    return Task(name) if name in set(Task) else Task.SFT


def _fitting(task: Task) -> list[str]:
    """The kinds of rows that a task trains on, the usual one first."""
    usual = "text" if task.traits.cuts_texts else "class" if task.traits.has_classes else ""
    return sorted((kind for kind in KINDS if misfit(task, _format(kind)) is None), key=lambda kind: kind != usual)


def _suggested(item: Dataset, fitting: list[str]) -> dict[str, str]:
    """The mapping that the columns suggest, with the roles of a kind that the task trains on."""
    mapping = partial(suggest_by_any(item.sample) or "")
    return for_kind(mapping, _kind(mapping, fitting), item.columns)


def _detected(item: Dataset) -> str:
    """The mapping that a data set has without one of the run's, to begin with."""
    if item.columns_map:
        return item.columns_map
    kind = kind_of({}, item.row_format)
    return write_mapping(_filled(for_kind({}, kind, item.columns), kind, item.columns))


def _filled(mapping: dict[str, str], kind: str, columns: list[str]) -> dict[str, str]:
    """The mapping with columns that it does not use for the roles that it lacks, so that the kind is not lost."""
    free = iter([name for name in columns if name not in mapping.values()])
    more = dict(zip(missing_roles(mapping, kind), free, strict=False))
    return {role: (mapping | more)[role] for role in KINDS[kind][1] if role in mapping or role in more}


def _kind(mapping: Mapping[str, str], fitting: list[str]) -> str:
    """The kind of rows, of those that the task trains on, that a mapping fits best; the first of them for no mapping."""

    def fit(kind: str) -> tuple[int, int]:
        return sum(role in KINDS[kind][1] for role in mapping), -len(missing_roles(mapping, kind))

    return max(fitting, key=fit) if mapping else fitting[0]


def _format(kind: str) -> str:
    """The format of the rows of a kind."""
    return format_of(dict.fromkeys(missing_roles({}, kind), kind))
