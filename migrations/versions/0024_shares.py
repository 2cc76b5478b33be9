"""with whom runs, sweeps and data sets are shared."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "share",
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("object_id", sa.String(32), primary_key=True),
        sa.Column("user", sa.String(120), primary_key=True),
    )


def downgrade() -> None:
    op.drop_table("share")
