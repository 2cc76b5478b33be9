"""Texts with HTML and escape sequences in every column of an installation that holds a text of people, models, logs or files."""

import re
from pathlib import Path
from typing import Any

from sqlalchemy import JSON, Enum, String, update
from sqlmodel import SQLModel, select

from worker.settings import get_settings
from worker.store import database

HTML = "<script>window.harmed = true</script><img src=x onerror='window.harmed = true'>"
ESCAPES = "\x1b]0;harm\x07\x1b[2J\x9b31m\r\u202e"
HARM = f"harm{ESCAPES}{HTML}"
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")

_TABLES = (
    "run",
    "attempt",
    "run_event",
    "log_line",
    "sample",
    "dataset",
    "sweep",
    "evaluation",
    "served_model",
    "prompt_set",
)
_NOT_TEXT = {
    "status", "state", "kind", "level", "outcome", "owner", "holder", "host", "device", "address", "secret",
    "request", "format", "file_format", "shape", "sha256", "digest", "columns_map", "created_by", "end_request", "phase",
    "job_id", "source", "spec",
}  # fmt: skip
_TEXTS = {
    "name", "message", "fix", "title", "text", "cause", "traceback", "meaning", "reason", "prompt", "expected", "answer", "user",
    "system", "label", "sentence", "line", "lines", "chat_template", "notes", "completion", "tags", "columns",
}  # fmt: skip


def plant() -> None:
    """Adds HARM to the texts of all rows, and to the answers of evaluations."""
    with database.write() as session:
        for name in _TABLES:
            table = SQLModel.metadata.tables[name]
            keys = list(table.primary_key.columns)
            for row in session.connection().execute(select(table)).mappings().all():
                changed = {
                    c.name: _harmed(c, row[c.name]) for c in table.columns if not (c.primary_key or c.foreign_keys)
                }
                changed = {column: value for column, value in changed.items() if value != row[column]}
                if changed:
                    session.connection().execute(
                        update(table).where(*(key == row[key.name] for key in keys)).values(changed)
                    )
    for file in Path(get_settings().runs_dir).glob("*/evaluations/*/answers.jsonl"):
        file.write_text(
            file.read_text().replace('"prompt": "p"', '"prompt": "' + HARM.encode("unicode_escape").decode() + '"')
        )


def _harmed(column: Any, value: Any) -> Any:
    if column.name in _NOT_TEXT or value is None:
        return value
    if isinstance(column.type, JSON):
        return _inside(column.name, value)
    if isinstance(column.type, String) and not isinstance(column.type, Enum):
        longest = column.type.length or 10_000
        return (HARM + value)[:longest]
    return value


def _inside(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _inside(key, item) for key, item in value.items()}
    if isinstance(value, list):
        return [_inside(name, item) for item in value]
    return f"{HARM}{value}"[:10_000] if isinstance(value, str) and name in _TEXTS else value
