"""The samples of runs: stores them, and finds those of a step, with a text, or with equal rewards."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any, Literal, get_args

from sqlalchemy import ColumnElement, case, func, literal, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlmodel import Session, col, delete, or_, select
from sqlmodel.sql.expression import Select

from training.redaction import storable
from training.run_folder.events import Event, Planned, SampleDrawn
from worker.store import json_parts, long_rows
from worker.store.tables import Sample

Order = Literal["drawn", "lowest", "highest"]
ORDERS: tuple[Order, ...] = get_args(Order)
_KEY = ("run_id", "step", "sample")
_TEXTS = ("file", "prompt", "expected", "text")
_LONG = _TEXTS[1:]
_EQUAL = 1e-8  # rewards that differ by less are equal, as for the metric all_equal_groups


@dataclass(frozen=True)
class Wanted:
    """The groups wanted: of a step, or of all, the last first; with a sample that contains `search` in prompt, expected answer or
    text, in any case; with a sample that was cut off; with equal rewards only. They are ordered by the mean of a reward, or of the
    total if it has no name."""

    step: int | None = None
    search: str = ""
    cut_off: bool = False
    equal: bool = False
    order: Order = "drawn"
    reward: str = ""


def add(*, session: Session, run_id: str, events: Sequence[Event]) -> None:
    """Stores the samples among records. If one says that the run trains again from a step, it has no samples of later ones."""
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    for event in events:
        match event:
            case Planned(start_step=start):
                session.exec(delete(Sample).where(col(Sample.run_id) == run_id, col(Sample.step) > start))
                rows = {key: row for key, row in rows.items() if key[0] <= start}
            case SampleDrawn():
                rows[event.step, event.sample] = _row(run_id, event)
    if rows:
        session.connection().execute(_upsert(session.get_bind().dialect.name), list(rows.values()))


def _row(run_id: str, drawn: SampleDrawn) -> dict[str, Any]:
    values = {name: value for name, value in vars(drawn).items() if name in Sample.model_fields}
    return values | {name: storable(values[name]) for name in _TEXTS} | {"run_id": run_id}


@cache
def _upsert(dialect: str) -> sqlite.Insert | postgresql.Insert:
    statement = sqlite.insert(Sample) if dialect == "sqlite" else postgresql.insert(Sample)
    replaced = {name: statement.excluded[name] for name in Sample.model_fields if name not in _KEY}
    return statement.on_conflict_do_update(index_elements=_KEY, set_=replaced)


def steps(*, session: Session, run_id: str) -> list[int]:
    """The steps of which there are samples, ascending."""
    return list(session.exec(select(Sample.step).where(Sample.run_id == run_id).distinct().order_by(col(Sample.step))))


def count(*, session: Session, run_id: str, wanted: Wanted) -> int:
    """The number of groups wanted."""
    return session.scalar(select(func.count()).select_from(_groups(run_id, wanted).order_by(None).subquery())) or 0


def groups(
    *, session: Session, run_id: str, wanted: Wanted, offset: int = 0, limit: int = 100
) -> tuple[list[list[Sample]], int]:
    """The samples of each group wanted, in the order in which they were drawn, and the number of all such groups. Fewer if they
    are long."""
    total = count(session=session, run_id=run_id, wanted=wanted)
    keys = [(step, group) for step, group in session.execute(_groups(run_id, wanted).offset(offset).limit(limit))]
    if not keys:
        return [], total
    keys = _fitting(session, run_id, keys)
    drawn = select(Sample).where(*_of(run_id, keys)).order_by(col(Sample.step), col(Sample.sample))
    found: dict[tuple[int, int], list[Sample]] = {key: [] for key in keys}
    with session.exec(drawn.execution_options(**long_rows.AT_ONCE)) as rows:
        for sample in long_rows.within(rows, *_LONG):
            found[sample.step, sample.group].append(sample)
    return list(found.values()), total


def _of(run_id: str, keys: Sequence[tuple[int, int]]) -> tuple[ColumnElement[bool], ...]:
    return col(Sample.run_id) == run_id, tuple_(col(Sample.step), col(Sample.group)).in_(keys)


def _fitting(session: Session, run_id: str, keys: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The first of these groups, as many as have MOST_CHARACTERS together, at least one."""
    length = func.sum(sum((func.length(getattr(Sample, name)) for name in _LONG), literal(0)))
    each = (
        select(Sample.step, Sample.group, length)
        .where(*_of(run_id, keys))
        .group_by(col(Sample.step), col(Sample.group))
    )
    lengths = {(step, group): int(characters) for step, group, characters in session.exec(each)}
    totals = accumulate(lengths[key] for key in keys)
    fitting = sum(total <= long_rows.MOST_CHARACTERS for total in totals)
    return list(keys[: max(fitting, 1)])


def _groups(run_id: str, wanted: Wanted) -> Select[int, int]:
    """The step and number of each group wanted, in the order wanted."""
    step, group, reward = col(Sample.step), col(Sample.group), col(Sample.reward)
    every = select(step, group).where(Sample.run_id == run_id).group_by(step, group)
    if wanted.step is not None:
        every = every.where(step == wanted.step)
    if wanted.search:
        texts = (col(Sample.prompt), col(Sample.expected), col(Sample.text))
        every = every.having(_any(or_(*(text.icontains(wanted.search, autoescape=True) for text in texts))))
    if wanted.cut_off:
        every = every.having(_any(~col(Sample.ended)))
    if wanted.equal:
        every = every.having(func.coalesce(func.max(reward) - func.min(reward), 0.0) < _EQUAL)
    if wanted.order != "drawn":
        mean = func.avg(json_parts.number(Sample.scores, wanted.reward) if wanted.reward else reward)
        every = every.order_by(mean.is_(None), mean if wanted.order == "lowest" else mean.desc())
    return every.order_by(step.desc(), group)


def _any(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """True if the condition holds for one sample of a group."""
    return func.sum(case((condition, 1), else_=0)) > literal(0)
