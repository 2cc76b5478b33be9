"""what each account may use at once: devices, waiting runs and disk space."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("account") as account:
        account.add_column(sa.Column("max_devices", sa.Integer, nullable=True))
        account.add_column(sa.Column("max_waiting", sa.Integer, nullable=True))
        account.add_column(sa.Column("max_disk_bytes", sa.BigInteger, nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("account") as account:
        account.drop_column("max_disk_bytes")
        account.drop_column("max_waiting")
        account.drop_column("max_devices")
