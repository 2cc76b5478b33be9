"""evaluations: runs evaluated on data sets, and the devices that they use."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "evaluation",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("run_id", sa.String, sa.ForeignKey("run.id", ondelete="CASCADE"), nullable=False),
        sa.Column("owner", sa.String(120), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("request", sa.JSON, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("started_at", sa.Float),
        sa.Column("finished_at", sa.Float),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("lease_owner", sa.String(200)),
        sa.Column("lease_expires_at", sa.Float),
        sa.Column("device", sa.String(200), nullable=False),
        sa.Column("stopping", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("phase", sa.String(60), nullable=False),
        sa.Column("done", sa.Integer, nullable=False),
        sa.Column("total", sa.Integer, nullable=False),
        sa.Column("overlap", sa.JSON),
        sa.Column("summary", sa.JSON),
        sa.Column("error", sa.JSON),
        sa.Column("reason", sa.Text, nullable=False, server_default=""),
    )
    op.create_index("ix_evaluation_run_id_id", "evaluation", ["run_id", "id"])
    op.create_index("ix_evaluation_status", "evaluation", ["status"])
    op.add_column("device_lease", sa.Column("evaluation_id", sa.String(32)))


def downgrade() -> None:
    op.drop_column("device_lease", "evaluation_id")
    op.drop_table("evaluation")
