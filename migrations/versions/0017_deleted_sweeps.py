"""deleted sweeps: a sweep that is being deleted, until its last run is gone."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sweep", sa.Column("deleted_at", sa.Float, nullable=True))


def downgrade() -> None:
    op.drop_column("sweep", "deleted_at")
