"""Samples of task distill, which are not compared with others."""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("sample") as table:
        table.alter_column("advantage", existing_type=sa.Float, nullable=True)


def downgrade() -> None:
    op.execute("DELETE FROM sample WHERE advantage IS NULL")
    with op.batch_alter_table("sample") as table:
        table.alter_column("advantage", existing_type=sa.Float, nullable=False)
