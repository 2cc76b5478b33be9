"""arrangement of plots: what each account has chosen for the plots of runs."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("preferences", sa.Column("plots", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("preferences", "plots")
