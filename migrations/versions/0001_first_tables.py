"""first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create_dataset()
    _create_run()
    _create_attempt()
    _create_device_lease()
    _create_metric()
    _create_metric_rollup()
    _create_run_event()
    _create_log_line()


def downgrade() -> None:
    for table in ("log_line", "run_event", "metric_rollup", "metric", "device_lease", "attempt", "run", "dataset"):
        op.drop_table(table)


def _create_dataset() -> None:
    op.create_table(
        "dataset",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("sha256", sa.String(64), nullable=False, unique=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("format", sa.String(20), nullable=False),
        sa.Column("shape", sa.String(40), nullable=False),
        sa.Column("rows", sa.Integer, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("columns", sa.JSON, nullable=False),
        sa.Column("sample", sa.JSON, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
    )
    op.create_index("ix_dataset_created_at", "dataset", ["created_at"])


def _create_run() -> None:
    op.create_table(
        "run",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("config", sa.JSON, nullable=False),
        sa.Column("dataset_id", sa.String, sa.ForeignKey("dataset.id")),
        sa.Column("parent_id", sa.String(32)),
        sa.Column("owner", sa.String(120), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("queued_at", sa.Float, nullable=False),
        sa.Column("started_at", sa.Float),
        sa.Column("finished_at", sa.Float),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("lease_owner", sa.String(200)),
        sa.Column("lease_expires_at", sa.Float),
        sa.Column("request", sa.String(16)),
        sa.Column("devices", sa.JSON, nullable=False),
        sa.Column("event_offset", sa.BigInteger, nullable=False),
        sa.Column("log_offset", sa.BigInteger, nullable=False),
        sa.Column("phase", sa.String(40), nullable=False),
        sa.Column("step", sa.Integer, nullable=False),
        sa.Column("total_steps", sa.Integer),
        sa.Column("phase_done", sa.Integer),
        sa.Column("phase_total", sa.Integer),
        sa.Column("seconds_per_step", sa.Float),
        sa.Column("final_loss", sa.Float),
        sa.Column("best_loss", sa.Float),
        sa.Column("diverged", sa.Boolean, nullable=False),
        sa.Column("peak_bytes", sa.BigInteger),
        sa.Column("plan", sa.JSON),
        sa.Column("summary", sa.JSON),
        sa.Column("error", sa.JSON),
    )
    for column in ("created_at", "dataset_id", "queued_at", "status"):
        op.create_index(f"ix_run_{column}", "run", [column])


def _create_attempt() -> None:
    op.create_table(
        "attempt",
        sa.Column("run_id", sa.String, sa.ForeignKey("run.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("host", sa.String(200), nullable=False),
        sa.Column("devices", sa.JSON, nullable=False),
        sa.Column("started_at", sa.Float, nullable=False),
        sa.Column("ended_at", sa.Float),
        sa.Column("outcome", sa.String(40), nullable=False),
        sa.Column("exit_code", sa.Integer),
        sa.Column("reason", sa.Text, nullable=False),
    )


def _create_device_lease() -> None:
    op.create_table(
        "device_lease",
        sa.Column("device", sa.String(200), primary_key=True),
        sa.Column("run_id", sa.String, sa.ForeignKey("run.id", ondelete="CASCADE"), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
    )
    op.create_index("ix_device_lease_run_id", "device_lease", ["run_id"])


def _create_metric() -> None:
    op.create_table(
        "metric",
        sa.Column("run_id", sa.String, sa.ForeignKey("run.id", ondelete="CASCADE"), nullable=False),
        sa.Column("name", sa.String(60), nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("step", sa.Integer, nullable=False),
        sa.Column("time", sa.Float, nullable=False),
        sa.Column("value", sa.Float),
        sa.PrimaryKeyConstraint("run_id", "name", "rank", "step"),
        sqlite_with_rowid=False,  # SQLite stores rows in key order: half the file size, and a series is contiguous
    )


def _create_metric_rollup() -> None:
    op.create_table(
        "metric_rollup",
        sa.Column("run_id", sa.String, sa.ForeignKey("run.id", ondelete="CASCADE"), nullable=False),
        sa.Column("name", sa.String(60), nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("level", sa.Integer, nullable=False),
        sa.Column("bucket", sa.Integer, nullable=False),
        sa.Column("step", sa.Integer, nullable=False),
        sa.Column("time", sa.Float, nullable=False),
        sa.Column("count", sa.Integer, nullable=False),
        sa.Column("mean", sa.Float),
        sa.Column("low", sa.Float),
        sa.Column("high", sa.Float),
        # The level comes before the name, so that the coarsest level, which lists the series, is one short range.
        sa.PrimaryKeyConstraint("run_id", "level", "name", "rank", "bucket"),
        sqlite_with_rowid=False,
    )


def _create_run_event() -> None:
    op.create_table(
        "run_event",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("run_id", sa.String, sa.ForeignKey("run.id", ondelete="CASCADE"), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("time", sa.Float, nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("level", sa.String(10), nullable=False),
        sa.Column("step", sa.Integer),
        sa.Column("message", sa.Text, nullable=False),
    )
    op.create_index("ix_run_event_run_id_id", "run_event", ["run_id", "id"])


def _create_log_line() -> None:
    op.create_table(
        "log_line",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("run_id", sa.String, sa.ForeignKey("run.id", ondelete="CASCADE"), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("time", sa.Float, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
    )
    op.create_index("ix_log_line_run_id_id", "log_line", ["run_id", "id"])
