"""Samples of task grpo."""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "sample",
        sa.Column("run_id", sa.String, sa.ForeignKey("run.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("step", sa.Integer, primary_key=True),
        sa.Column("sample", sa.Integer, primary_key=True),
        sa.Column("group", sa.Integer, nullable=False),
        sa.Column("row", sa.Integer, nullable=False),
        sa.Column("file", sa.Text, nullable=False),
        sa.Column("prompt", sa.Text, nullable=False),
        sa.Column("expected", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("tokens", sa.Integer, nullable=False),
        sa.Column("ended", sa.Boolean, nullable=False),
        sa.Column("scores", sa.JSON, nullable=False),
        sa.Column("reward", sa.Float),
        sa.Column("advantage", sa.Float, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("sample")
