"""Ids of log lines, events and notifications have 64 bits on PostgreSQL, where the 2,147,483,648th row was refused.

SQLite's have them already. PostgreSQL rewrites the tables, which takes about a minute for each ten million rows.
"""

from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

_TABLES = ("log_line", "run_event", "notification")


def upgrade() -> None:
    _change("BIGINT")


def downgrade() -> None:
    _change("INTEGER")


def _change(to: str) -> None:
    if op.get_bind().dialect.name == "postgresql":
        for table in _TABLES:
            op.execute(f"ALTER TABLE {table} ALTER COLUMN id TYPE {to}")
            op.execute(f"ALTER SEQUENCE {table}_id_seq AS {to}")
