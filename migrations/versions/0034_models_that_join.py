"""Models that a serving process loads beside those that it serves."""

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("served_model") as table:
        table.add_column(sa.Column("loads", sa.JSON, nullable=False, server_default="[]"))


def downgrade() -> None:
    with op.batch_alter_table("served_model") as table:
        table.drop_column("loads")
