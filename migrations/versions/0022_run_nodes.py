"""the further machines of a run on several."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "run_node",
        sa.Column("run_id", sa.String(32), sa.ForeignKey("run.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True),
        sa.Column("rank", sa.Integer, primary_key=True),
        sa.Column("host", sa.String(200), nullable=False),
        sa.Column("devices", sa.JSON, nullable=False),
        sa.Column("holder", sa.String(200)),
        sa.Column("expires_at", sa.Float),
        sa.Column("request", sa.String(16), nullable=False),
        sa.Column("exit_code", sa.Integer),
        sa.Column("problem", sa.Text, nullable=False),
        sa.Column("ended_at", sa.Float),
    )
    op.create_index("ix_run_node_host", "run_node", ["host"])
    with op.batch_alter_table("run") as run:
        run.add_column(sa.Column("placed", sa.JSON, nullable=False, server_default="{}"))


def downgrade() -> None:
    with op.batch_alter_table("run") as run:
        run.drop_column("placed")
    op.drop_table("run_node")
