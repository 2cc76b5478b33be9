"""served models and prompt sets; a device may be leased by a served model."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "served_model",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("owner", sa.String(120), nullable=False),
        sa.Column("models", sa.JSON, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("end_request", sa.Text, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        *(sa.Column(name, sa.Float) for name in ("ready_at", "ended_at", "seen_at")),
        sa.Column("holder", sa.String(200)),
        sa.Column("pid", sa.Integer),
        sa.Column("device", sa.String(200)),
        sa.Column("address", sa.String(250), nullable=False),
        sa.Column("secret", sa.String(64), nullable=False),
    )
    for name in ("owner", "state"):
        op.create_index(f"ix_served_model_{name}", "served_model", [name])
    op.create_table(
        "prompt_set",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("owner", sa.String(120), nullable=False),
        sa.Column("name", sa.String(120), nullable=False),
        sa.Column("prompts", sa.JSON, nullable=False),
        sa.Column("answers", sa.JSON, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
    )
    for name in ("owner", "created_at"):
        op.create_index(f"ix_prompt_set_{name}", "prompt_set", [name])
    with op.batch_alter_table("device_lease") as lease:
        lease.alter_column("run_id", existing_type=sa.String, nullable=True)
        lease.add_column(sa.Column("served_id", sa.String(32)))
        lease.create_foreign_key(
            "device_lease_served_id_fkey", "served_model", ["served_id"], ["id"], ondelete="CASCADE"
        )
        lease.create_index("ix_device_lease_served_id", ["served_id"])


def downgrade() -> None:
    op.execute("DELETE FROM device_lease WHERE run_id IS NULL")
    with op.batch_alter_table("device_lease") as lease:
        lease.drop_index("ix_device_lease_served_id")
        lease.drop_constraint("device_lease_served_id_fkey", type_="foreignkey")
        lease.drop_column("served_id")
        lease.alter_column("run_id", existing_type=sa.String, nullable=False)
    op.drop_table("prompt_set")
    op.drop_table("served_model")
