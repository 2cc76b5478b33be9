"""accounts, and the owners of runs and data sets."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "account",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("token_hash", sa.String(64), nullable=False, unique=True),
        sa.Column("admin", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
    )
    op.add_column("dataset", sa.Column("owner", sa.String(120), nullable=False, server_default="local"))
    op.execute("UPDATE run SET owner = 'local' WHERE owner = ''")


def downgrade() -> None:
    op.execute("UPDATE run SET owner = '' WHERE owner = 'local'")
    op.drop_column("dataset", "owner")
    op.drop_table("account")
