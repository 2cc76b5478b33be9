"""prices of a GPU hour and of a kWh, in a user's preferences."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("preferences") as preferences:
        preferences.add_column(sa.Column("price_gpu_hour", sa.Text, nullable=False, server_default=""))
        preferences.add_column(sa.Column("price_kwh", sa.String(40), nullable=False, server_default=""))


def downgrade() -> None:
    with op.batch_alter_table("preferences") as preferences:
        preferences.drop_column("price_kwh")
        preferences.drop_column("price_gpu_hour")
