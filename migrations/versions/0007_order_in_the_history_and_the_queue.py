"""order in the history and the queue."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def _columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("position", sa.Float, nullable=False, server_default="0"),
        sa.Column("priority", sa.Integer, nullable=False, server_default="0"),
        sa.Column("held", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("pinned", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("archived_at", sa.Float),
        sa.Column("tags", sa.JSON, nullable=False, server_default="[]"),
        sa.Column("notes", sa.Text, nullable=False, server_default=""),
    ]


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        # Rewritten with the new columns before the long ones: SQLite reads a row up to the last column that it needs.
        with op.batch_alter_table("run", recreate="always") as run:
            place = "queued_at"
            for column in _columns():
                run.add_column(column, insert_after=place)
                place = column.name
    else:
        for column in _columns():
            op.add_column("run", column)
    op.execute("UPDATE run SET position = queued_at")
    op.create_index("ix_run_listed", "run", ["archived_at", "pinned", "queued_at", "id"])
    op.create_table(
        "queue_state",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("paused_at", sa.Float),
        sa.Column("paused_by", sa.String(120), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("queue_state")
    op.drop_index("ix_run_listed", "run")
    for column in _columns():
        op.drop_column("run", column.name)
