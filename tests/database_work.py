"""What code costs SQLite: the statements that it runs, and the steps of SQLite, which do not depend on the clock."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import event

from worker.store import database

_UNIT = 50  # steps between two calls


@dataclass
class Work:
    """The statements, and steps of SQLite's virtual machine."""

    statements: list[str] = field(default_factory=list)
    steps: int = 0


@contextmanager
def counted() -> Iterator[Work]:
    """Counts what all threads of this process do with the test's database meanwhile."""
    work, engine = Work(), database.engine()

    def step() -> int:
        work.steps += _UNIT
        return 0

    def watch(connection: Any, *_: Any) -> None:
        connection.set_progress_handler(step, _UNIT)

    def keep(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        work.statements.append(statement)

    engine.dispose()  # so that each connection is a new one
    event.listen(engine, "connect", watch)
    event.listen(engine, "before_cursor_execute", keep)
    try:
        yield work
    finally:
        event.remove(engine, "connect", watch)
        event.remove(engine, "before_cursor_execute", keep)
        engine.dispose()
