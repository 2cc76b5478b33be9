"""Runs that OpenAI's API has asked for."""

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("run") as table:
        table.add_column(sa.Column("fine_tuning", sa.JSON))


def downgrade() -> None:
    with op.batch_alter_table("run") as table:
        table.drop_column("fine_tuning")
