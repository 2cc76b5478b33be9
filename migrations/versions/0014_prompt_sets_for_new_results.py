"""a prompt set can be asked of every new result."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("prompt_set") as table:
        table.add_column(sa.Column("every_result", sa.Boolean, nullable=False, server_default=sa.false()))


def downgrade() -> None:
    with op.batch_alter_table("prompt_set") as table:
        table.drop_column("every_result")
