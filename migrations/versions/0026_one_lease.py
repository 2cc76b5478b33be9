"""runs, evaluations and served models name their holder and the end of its lease alike."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

LEASE_SECONDS = 150  # until now, the end of a served model's lease was not stored
SERVED = sa.table("served_model", sa.column("expires_at", sa.Float))


def upgrade() -> None:
    for table in ("run", "evaluation"):
        op.execute(sa.text(f"ALTER TABLE {table} RENAME COLUMN lease_owner TO holder"))
        op.execute(sa.text(f"ALTER TABLE {table} RENAME COLUMN lease_expires_at TO expires_at"))
    op.execute(sa.text("ALTER TABLE served_model RENAME COLUMN seen_at TO expires_at"))
    op.execute(SERVED.update().values(expires_at=SERVED.c.expires_at + LEASE_SECONDS))


def downgrade() -> None:
    op.execute(SERVED.update().values(expires_at=SERVED.c.expires_at - LEASE_SECONDS))
    op.execute(sa.text("ALTER TABLE served_model RENAME COLUMN expires_at TO seen_at"))
    for table in ("run", "evaluation"):
        op.execute(sa.text(f"ALTER TABLE {table} RENAME COLUMN holder TO lease_owner"))
        op.execute(sa.text(f"ALTER TABLE {table} RENAME COLUMN expires_at TO lease_expires_at"))
