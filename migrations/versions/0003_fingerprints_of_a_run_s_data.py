"""fingerprints of a run's data."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


_run = sa.table("run", sa.column("id"), sa.column("dataset_id"), sa.column("fingerprints", sa.JSON))
_dataset = sa.table("dataset", sa.column("id"), sa.column("sha256"))


def upgrade() -> None:
    op.add_column("run", sa.Column("fingerprints", sa.JSON, nullable=False, server_default="{}"))
    known = sa.select(_run.c.id, _dataset.c.sha256).join(_dataset, _run.c.dataset_id == _dataset.c.id)
    for row in op.get_bind().execute(known).all():
        op.execute(_run.update().where(_run.c.id == row.id).values(fingerprints={"data": row.sha256}))


def downgrade() -> None:
    op.drop_column("run", "fingerprints")
