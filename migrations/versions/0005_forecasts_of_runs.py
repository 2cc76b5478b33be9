"""forecasts of runs."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("run", sa.Column("forecast", sa.JSON))


def downgrade() -> None:
    op.drop_column("run", "forecast")
