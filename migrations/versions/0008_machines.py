"""machines: what each worker reports about its machine."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "machine",
        sa.Column("name", sa.String(250), primary_key=True),
        sa.Column("host", sa.String(200), nullable=False),
        sa.Column("worker", sa.String(200), nullable=False),
        sa.Column("first_seen", sa.Float, nullable=False),
        sa.Column("last_seen", sa.Float, nullable=False),
        sa.Column("draining", sa.Boolean, nullable=False),
        sa.Column("overload", sa.Text, nullable=False),
        sa.Column("versions", sa.JSON, nullable=False),
        sa.Column("cores", sa.Integer, nullable=False),
        sa.Column("load", sa.Float, nullable=False),
        *(
            sa.Column(name, sa.BigInteger, nullable=False)
            for name in ("memory_bytes", "memory_used_bytes", "disk_bytes", "disk_free_bytes")
        ),
        sa.Column("devices", sa.JSON, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("machine")
