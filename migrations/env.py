"""Alembic's entry: runs the migrations on the connection that `worker.store.database.migrating()` opened."""

from typing import Any, Literal

from alembic import context
from sqlmodel import SQLModel
from sqlmodel.sql.sqltypes import AutoString

import worker.store.tables  # noqa: F401  (declares the tables)


def render_item(kind: str, item: Any, _: Any) -> str | Literal[False]:
    """Writes SQLModel's string type as SQLAlchemy's own, so that a migration needs no import of SQLModel."""
    if kind == "type" and isinstance(item, AutoString):
        return f"sa.String(length={item.length})" if item.length else "sa.String()"
    return False


# SQLite cannot alter most properties of a table; batch mode copies the table, on every engine.
context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=SQLModel.metadata,
    render_as_batch=True,
    render_item=render_item,
    compare_type=True,
)
with context.begin_transaction():
    context.run_migrations()
