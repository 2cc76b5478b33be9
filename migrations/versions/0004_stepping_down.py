"""stepping down."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("run", sa.Column("stepped_down", sa.JSON, nullable=False, server_default="{}"))
    op.add_column("attempt", sa.Column("stepped_down", sa.JSON, nullable=False, server_default="{}"))
    op.add_column("attempt", sa.Column("out_of_memory", sa.JSON))


def downgrade() -> None:
    op.drop_column("attempt", "out_of_memory")
    op.drop_column("attempt", "stepped_down")
    op.drop_column("run", "stepped_down")
