"""sweeps: several runs of one configuration with different values of some settings."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "sweep",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("owner", sa.String(120), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("plan", sa.JSON, nullable=False),
        sa.Column("stopped_at", sa.Float),
    )
    op.create_index("ix_sweep_created_at", "sweep", ["created_at"])
    op.add_column("run", sa.Column("sweep_id", sa.String(32)))
    op.add_column("run", sa.Column("trial", sa.Integer))
    op.add_column("run", sa.Column("pause_at", sa.Integer))
    op.create_index("ix_run_sweep_id", "run", ["sweep_id"])


def downgrade() -> None:
    op.drop_index("ix_run_sweep_id", "run")
    for name in ("sweep_id", "trial", "pause_at"):
        op.drop_column("run", name)
    op.drop_index("ix_sweep_created_at", "sweep")
    op.drop_table("sweep")
