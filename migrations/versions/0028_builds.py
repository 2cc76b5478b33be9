"""Forms of results that are made on request."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "build",
        sa.Column("holder", sa.String(200)),
        sa.Column("expires_at", sa.Float),
        sa.Column("run_id", sa.String, sa.ForeignKey("run.id", ondelete="CASCADE"), nullable=False),
        sa.Column("owner", sa.String(120), nullable=False),
        sa.Column("status", sa.String(16), nullable=False, index=True),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("started_at", sa.Float),
        sa.Column("finished_at", sa.Float),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("stopping", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("phase", sa.String(60), nullable=False),
        sa.Column("done", sa.BigInteger, nullable=False),
        sa.Column("total", sa.BigInteger, nullable=False),
        sa.Column("error", sa.JSON),
        sa.Column("reason", sa.Text, nullable=False, server_default=""),
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("form", sa.String(40), nullable=False),
        sa.Column("notes", sa.Text, nullable=False),
        sa.UniqueConstraint("run_id", "form"),
    )


def downgrade() -> None:
    op.drop_table("build")
