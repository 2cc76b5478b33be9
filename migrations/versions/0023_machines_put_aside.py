"""machines that are put aside after failures."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "machine_failure",
        sa.Column("host", sa.String(200), primary_key=True),
        sa.Column("run_id", sa.String(32), primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True),
        sa.Column("failed_at", sa.Float, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
    )
    op.create_table(
        "machine_aside",
        sa.Column("host", sa.String(200), primary_key=True),
        sa.Column("since", sa.Float, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("machine_aside")
    op.drop_table("machine_failure")
