"""How long a run has worked, and in columns with an index what it does: the same model and method, and the same data."""

import hashlib
import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

_run = sa.table("run", *(sa.column(name) for name in ("id", "config", "dataset_id", "same_model", "same_work")))


def upgrade() -> None:
    with op.batch_alter_table("run") as table:
        table.add_column(sa.Column("same_model", sa.String(16), nullable=False, server_default=""))
        table.add_column(sa.Column("same_work", sa.String(16), nullable=False, server_default=""))
        table.add_column(sa.Column("worked_seconds", sa.Float, nullable=False, server_default="0"))
        table.add_column(sa.Column("working_since", sa.Float))
        table.create_index("ix_run_same_model", ["same_model", "id"])
        table.create_index("ix_run_same_work", ["same_work", "status", "id"])
    rows = op.get_bind().execute(sa.select(_run.c.id, sa.cast(_run.c.config, sa.Text), _run.c.dataset_id)).all()
    values = [{"key": key, **_columns(_read(config), dataset_id)} for key, config, dataset_id in rows]
    if values:
        changed = {name: sa.bindparam(f"new_{name}") for name in ("same_model", "same_work")}
        op.get_bind().execute(_run.update().where(_run.c.id == sa.bindparam("key")).values(changed), values)
    op.execute(
        "UPDATE run SET worked_seconds = coalesce((SELECT sum(ended_at - started_at) FROM attempt "
        "WHERE run_id = run.id AND ended_at > started_at), 0), working_since = (SELECT max(started_at) FROM attempt "
        "WHERE run_id = run.id AND ended_at IS NULL AND run.status = 'running')"
    )


def _columns(config: dict[str, Any], dataset_id: str | None) -> dict[str, str]:
    trained = config.get("model"), config.get("method")
    return {"new_same_model": _digest(*trained), "new_same_work": _digest(*trained, dataset_id or config.get("data"))}


def _digest(*values: Any) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


def _read(config: str) -> dict[str, Any]:
    """The configuration; empty where the row is damaged."""
    try:
        found = json.loads(config)
    except (TypeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def downgrade() -> None:
    with op.batch_alter_table("run") as table:
        table.drop_index("ix_run_same_work")
        table.drop_index("ix_run_same_model")
        table.drop_column("working_since")
        table.drop_column("worked_seconds")
        table.drop_column("same_work")
        table.drop_column("same_model")
