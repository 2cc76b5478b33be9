"""What a user sees: with LATHE_VISIBILITY=own only what they own, and what was shared with them.

The limit stands below the queries of `database.read()`, so that no page, route or document can forget it. Sessions of
`database.write()` and `read_everything()` are not limited: whether a data set is in use, or an id taken, must be decided with all
rows.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from sqlalchemy import ColumnElement, event, or_
from sqlalchemy.orm import ORMExecuteState, with_loader_criteria
from sqlmodel import Session, SQLModel, col, select

from worker.store.tables import (
    Build,
    Dataset,
    Evaluation,
    LogLine,
    Metric,
    MetricRollup,
    PromptSet,
    Run,
    RunEvent,
    RunNode,
    Sample,
    ServedModel,
    Share,
    Sweep,
)

EVERYBODY = "*"
"""In place of a user's name in a share: all users."""

ANOTHER = "another user"
ANOTHER_RUN = f"a run of {ANOTHER}"
"""What is shown in place of the owner and the name of a run that the user does not see."""

HIDDEN = "hidden-"
"""With what the ids begin that are shown in place of the ids of such runs."""

_OWNED: tuple[Any, ...] = (Run, Sweep, Dataset, ServedModel, PromptSet)
_OF_RUNS: tuple[Any, ...] = (Build, Evaluation, RunEvent, LogLine, Metric, MetricRollup, RunNode, Sample)
_SHARED = {Run: ["run"], Sweep: ["sweep"], Dataset: ["dataset", "upload"]}

_user: ContextVar[str | None] = ContextVar("user", default=None)


def limit_to(user: str | None) -> None:
    """Limits what is read from now on in this context, such as a request, to what a user sees; None: to nothing."""
    _user.set(user)


def user() -> str | None:
    """The user to whose view reading is limited; None if everything is seen."""
    return _user.get()


@contextmanager
def seen_by(user: str | None) -> Iterator[None]:
    """Reads what a user sees; None: without a limit."""
    token = _user.set(user)
    try:
        yield
    finally:
        _user.reset(token)


def everything() -> AbstractContextManager[None]:
    """Reads without a limit, for what concerns all users: the order of the queue, devices in use."""
    return seen_by(None)


def visible(session: Session, run_ids: list[str]) -> set[str]:
    """Those of the runs that the session's user sees."""
    return set(session.exec(select(Run.id).where(col(Run.id).in_(run_ids))))


@event.listens_for(Session, "do_orm_execute")
def _limit(state: ORMExecuteState) -> None:
    name = state.session.info.get("user")
    if name is not None and state.is_select and not state.is_column_load:
        limits = [*_own(name), *_with_their_run(name)]
        state.statement = state.statement.options(
            *(with_loader_criteria(table, limit, include_aliases=True) for table, limit in limits)
        )


def _own(name: str) -> Iterator[tuple[type[SQLModel], ColumnElement[bool]]]:
    for table in _OWNED:
        yield table, _sees(table, name)


def _with_their_run(name: str) -> Iterator[tuple[type[SQLModel], ColumnElement[bool]]]:
    runs = select(Run.id).where(_sees(Run, name))
    for table in _OF_RUNS:
        yield table, table.run_id.in_(runs)


def _sees(table: Any, name: str) -> ColumnElement[bool]:
    """The condition that the user owns a row, or that it was shared with them; of a run, also with its sweep."""
    allowed = [table.owner == name]
    if kinds := _SHARED.get(table):
        allowed.append(table.id.in_(_shared(kinds, name)))
    if table is Run:
        allowed.append(col(Run.sweep_id).in_(_shared(["sweep"], name)))
    return or_(*allowed)


def _shared(kinds: list[str], name: str) -> Any:
    return select(Share.object_id).where(col(Share.kind).in_(kinds), col(Share.user).in_([name, EVERYBODY]))
