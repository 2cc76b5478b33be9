"""what data sets hold."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_SHAPES = {"instruction/output": "alpaca", "conversations": "sharegpt"}
_dataset = sa.table(
    "dataset", *(sa.column(name) for name in ("id", "shape", "rows", "reason")), sa.column("counts", sa.JSON)
)


def upgrade() -> None:
    with op.batch_alter_table("dataset") as table:
        table.add_column(sa.Column("reason", sa.Text, nullable=False, server_default=""))
        table.add_column(sa.Column("counts", sa.JSON, nullable=False, server_default="{}"))
        table.add_column(sa.Column("warnings", sa.JSON, nullable=False, server_default="[]"))
        table.add_column(sa.Column("columns_map", sa.Text))
    for row in op.get_bind().execute(sa.select(_dataset.c.id, _dataset.c.shape, _dataset.c.rows)).all():
        shape = _SHAPES.get(row.shape, row.shape)
        values = {"shape": shape, "counts": {shape: row.rows}, "reason": f"every row has the columns of {shape}"}
        op.execute(_dataset.update().where(_dataset.c.id == row.id).values(values))


def downgrade() -> None:
    for new, old in ((new, old) for old, new in _SHAPES.items()):
        op.execute(_dataset.update().where(_dataset.c.shape == new).values(shape=old))
    with op.batch_alter_table("dataset") as table:
        for column in ("columns_map", "warnings", "counts", "reason"):
            table.drop_column(column)
