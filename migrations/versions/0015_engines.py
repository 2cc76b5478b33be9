"""runs on several machines, and the jobs of an engine that places them."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("run") as run:
        run.add_column(sa.Column("node_offsets", sa.JSON, nullable=False, server_default="{}"))
        run.add_column(sa.Column("job_id", sa.String(250)))
        run.add_column(sa.Column("job", sa.JSON))
        run.create_index("ix_run_job_id", ["job_id"])
    op.create_table(
        "engine_report",
        sa.Column("name", sa.String(16), primary_key=True),
        sa.Column("reported_at", sa.Float, nullable=False),
        sa.Column("capacity", sa.JSON, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("engine_report")
    with op.batch_alter_table("run") as run:
        run.drop_index("ix_run_job_id")
        for name in ("job", "job_id", "node_offsets"):
            run.drop_column(name)
