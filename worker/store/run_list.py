"""The history as a list: filtered, sorted, grouped and cut into pages by the database."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, cast

from sqlalchemy import ColumnElement, String, func
from sqlalchemy import cast as cast_to
from sqlmodel import Session, col, select

from training.config.fields import settings
from worker.store import filters
from worker.store.tables import Run, Status, Sweep

TIMES = ("queued_at", "created_at", "started_at", "finished_at")
COLUMNS = (*TIMES, "name", "owner", "status", "step", "final_loss", "best_loss", "peak_bytes")
GROUPS = ("model", "data", "method", "sweep", "tag", "owner", "status")
"""What runs can be grouped by, besides each setting."""


@dataclass(frozen=True)
class Query:
    """Which runs are listed, in which order, and which part of them.

    `search` is a filter (worker/store/filters.py), without one no archived runs match; `ids` names the runs instead.
    """

    status: Status | None = None
    search: str = ""
    ids: Collection[str] = ()
    order_by: str = "queued_at"
    descending: bool = True
    limit: int = 200
    offset: int = 0


NEWEST = Query()


@dataclass(frozen=True)
class Group:
    """Listed runs with the same value; `total` and the least evaluation loss `best_loss` are of all runs that match."""

    total: int
    best_loss: float | None
    runs: list[Run]


def listing(*, session: Session, query: Query = NEWEST) -> list[Run]:
    """Lists runs: pinned ones first, those without a value in the sorted column last.

    Raises:
        ValueError: `order_by` is not in `orders()`.
        FilterError: the filter has an unknown field or a wrong value.
    """
    chosen = select(Run.id).where(*_conditions(query)).order_by(col(Run.pinned).desc(), *_order(query))
    return _loaded(session, session.exec(chosen.limit(query.limit).offset(query.offset)).all())


def groups(*, session: Session, group_by: str, query: Query = NEWEST) -> list[Group]:
    """Lists runs as `listing` does, but by groups: in the order of their values, runs without a value last.

    Raises:
        ValueError: `order_by` is not in `orders()`.
        FilterError: the filter has an unknown field or a wrong value, or `group_by` is neither in GROUPS nor a setting.
    """
    columns: Any = (Run.id, Run.best_loss, _group(group_by).label("value"), _ordered(query).label("ordered"))
    of = select(*columns).where(*_conditions(query)).subquery()  # each value is read once from a configuration
    run_id, best_loss, value, order = of.c
    sums = func.count().over(partition_by=value), func.min(best_loss).over(partition_by=value)
    listed = select(run_id, value, *sums)
    listed = listed.order_by(value.asc().nulls_last(), _directed(order, query), run_id.desc())
    rows = session.exec(cast(Any, listed.limit(query.limit).offset(query.offset))).all()
    found = {run.id: run for run in _loaded(session, [row[0] for row in rows])}
    parts = [list(part) for _, part in groupby(rows, itemgetter(1))]
    return [Group(part[0][2], part[0][3], [found[row[0]] for row in part if row[0] in found]) for part in parts]


def _loaded(session: Session, ids: Sequence[str]) -> list[Run]:
    """The runs in the order of their ids. Sorting whole rows would copy all of them."""
    found = {run.id: run for run in session.exec(select(Run).where(col(Run.id).in_(ids)))}
    return [found[run_id] for run_id in ids if run_id in found]


def count(*, session: Session, query: Query = NEWEST) -> int:
    """The number of runs that match, on all pages.

    Raises:
        FilterError: the filter has an unknown field or a wrong value.
    """
    statement = select(func.count()).select_from(Run).where(*_conditions(query))
    return session.exec(statement).one()


def repeated_names(*, session: Session, names: Collection[str]) -> set[str]:
    """Those of the names that several runs have."""
    alike = select(Run.name).where(col(Run.name).in_(names)).group_by(Run.name).having(func.count() > 1)
    return set(session.exec(alike))


def orders() -> dict[str, ColumnElement[Any]]:
    """The columns that runs can be sorted by."""
    return {name: cast(ColumnElement[Any], col(getattr(Run, name))) for name in COLUMNS} | {
        "model": filters.configured("model"),
        "method": filters.configured("method"),
        "data": filters.data_name(),
        "sweep": cast(ColumnElement[Any], func.coalesce(_sweep_name(), "")),
        "progress": Run.step * 1.0 / func.nullif(Run.total_steps, 0),
        "duration": filters.elapsed(),
    }


def _sweep_name() -> ColumnElement[Any]:
    """The name of a run's sweep with its id, which tells sweeps of the same name apart."""
    named = Sweep.name + " · " + Sweep.id
    return select(named).where(Sweep.id == Run.sweep_id).scalar_subquery()


def _conditions(query: Query) -> list[filters.Condition]:
    if query.ids:
        return [col(Run.id).in_(query.ids)]
    chosen: list[filters.Condition] = [] if query.status is None else [col(Run.status) == query.status]
    return chosen + filters.conditions(query.search)


def _order(query: Query) -> list[ColumnElement[Any]]:
    return [_directed(_ordered(query), query), col(Run.id).desc()]


def _ordered(query: Query) -> ColumnElement[Any]:
    if query.order_by not in orders():
        raise ValueError(f"Runs cannot be sorted by {query.order_by!r}. Choose {', '.join(orders())}.")
    return orders()[query.order_by]


def _directed(column: ColumnElement[Any], query: Query) -> ColumnElement[Any]:
    return (column.desc() if query.descending else column.asc()).nulls_last()


def _group(name: str) -> ColumnElement[Any]:
    """What the runs of a group have in common; those without a tag, or not of a sweep, have null."""
    if name == "tag":
        return func.nullif(cast_to(Run.tags, String), "[]")
    if name == "sweep":
        return _sweep_name()
    if name == "data":  # other data sets, and mixtures, can have the same name
        return filters.data_name() + "\n" + filters.configured("data")
    if name in GROUPS:
        return orders()[name]
    if name in settings():
        return filters.set_value(settings()[name])
    fix = f"Use {', '.join(GROUPS)} or the name of a setting."
    raise filters.FilterError("group", name, "is nothing that runs can be grouped by.", fix)
