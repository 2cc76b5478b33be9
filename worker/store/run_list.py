"""The history as a list: filtered, sorted, grouped and cut into pages by the database."""

from collections import Counter
from collections.abc import Collection
from typing import Any, cast

from sqlalchemy import ColumnElement, func
from sqlmodel import Session, col, select

from worker.store import filters
from worker.store.tables import Run, Status, Sweep

TIMES = ("queued_at", "created_at", "started_at", "finished_at")
COLUMNS = (*TIMES, "name", "owner", "status", "step", "final_loss", "best_loss", "peak_bytes")
GROUPS = ("model", "data", "method", "owner", "status", "sweep")


def listing(
    *,
    session: Session,
    status: Status | None = None,
    search: str = "",
    order_by: str = "queued_at",
    descending: bool = True,
    group_by: str = "",
    limit: int = 200,
    offset: int = 0,
) -> list[Run]:
    """Lists runs: pinned ones first, grouped if asked, those without a value in the sorted column last.

    `search` is a filter (worker/store/filters.py).

    Raises:
        ValueError: `order_by` is not in `orders()`, or `group_by` not in `GROUPS`.
        FilterError: the filter has an unknown field or a wrong value.
    """
    if order_by not in orders():
        raise ValueError(f"Runs cannot be sorted by {order_by!r}. Choose {', '.join(orders())}.")
    column = orders()[order_by]
    order = [(column.desc() if descending else column.asc()).nulls_last(), col(Run.id).desc()]
    first = [_group(group_by)] if group_by else [col(Run.pinned).desc()]
    statement = select(Run).where(*_conditions(status, search)).order_by(*first, *order)
    return list(session.exec(statement.limit(limit).offset(offset)))


def count(*, session: Session, status: Status | None = None, search: str = "") -> int:
    """The number of runs that match.

    Raises:
        FilterError: the filter has an unknown field or a wrong value.
    """
    statement = select(func.count()).select_from(Run).where(*_conditions(status, search))
    return session.exec(statement).one()


def group_sizes(*, session: Session, group_by: str, status: Status | None = None, search: str = "") -> Counter[str]:
    """The number of matching runs in each group."""
    group = _group(group_by)
    statement = select(group, func.count()).where(*_conditions(status, search)).group_by(group)
    return Counter({str(name): number for name, number in session.exec(cast(Any, statement)).all()})


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


def _conditions(status: Status | None, search: str) -> list[filters.Condition]:
    chosen: list[filters.Condition] = [] if status is None else [col(Run.status) == status]
    return chosen + filters.conditions(search)


def _group(name: str) -> ColumnElement[Any]:
    if name not in GROUPS:
        raise ValueError(f"Runs cannot be grouped by {name!r}. Choose {', '.join(GROUPS)}.")
    return orders()[name]
