"""notifications: channels, messages to send, and preferences of users."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "notification_channel",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("owner", sa.String(120), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("format", sa.String(16), nullable=False),
        sa.Column("events", sa.JSON, nullable=False),
        sa.Column("everyone", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("created_at", sa.Float, nullable=False),
    )
    op.create_index("ix_notification_channel_owner", "notification_channel", ["owner"])
    op.create_table(
        "notification",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column(
            "channel_id", sa.String(32), sa.ForeignKey("notification_channel.id", ondelete="CASCADE"), nullable=False
        ),
        sa.Column("run_id", sa.String(32), sa.ForeignKey("run.id", ondelete="CASCADE")),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("event", sa.String(16), nullable=False),
        sa.Column("run", sa.JSON, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("next_try_at", sa.Float, nullable=False),
        sa.Column("done_at", sa.Float),
        sa.Column("delivered", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("reason", sa.Text, nullable=False),
        sa.UniqueConstraint("channel_id", "run_id", "attempt", "event"),
    )
    op.create_index("ix_notification_due", "notification", ["done_at", "next_try_at"])
    op.create_index("ix_notification_created_at", "notification", ["created_at"])
    op.create_index("ix_notification_run_id", "notification", ["run_id"])
    op.create_table(
        "preferences",
        sa.Column("owner", sa.String(120), primary_key=True),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("tour", sa.JSON, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("preferences")
    op.drop_table("notification")
    op.drop_table("notification_channel")
