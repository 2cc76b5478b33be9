"""The parts of a data set's page as HTML, from values that a test gives. No server, no database."""

from typing import Any

from app.format import dataset_text as words
from app.format import rows as row_words
from app.pages.dataset import page
from app.pages.dataset.state import MEASURED, TABS, ViewState
from worker.datasets.token_stores import TokenCount

DOCUMENT = {
    "damage": "",
    "id": "0" * 16,
    "name": "rows.jsonl",
    "owner": "local",
    "rows": 20,
    "bytes": 1000,
    "created_at": 0.0,
    "sha256": "0" * 64,
    "format": "prompt/completion",
    "file_format": "jsonl",
    "reason": "it is so",
    "counts": {},
    "columns": ["prompt", "completion"],
    "columns_map": None,
    "unused_columns": [],
    "warnings": [],
    "runs": [],
}


def parts(view: ViewState, *, document: dict[str, Any] | None = None, **values: Any) -> dict[str, str]:
    """The parts by name; `document` has what differs from the usual data set, `values` what the tab shows."""
    usual = {
        "view": view,
        "dataset": DOCUMENT | (document or {}),
        "problems": [],
        "models": [],
        "may_share": False,
        "may_change": True,
        "tabs": TABS,
        "is_measured": view.tab in MEASURED,
        "words": words,
        "row_words": row_words,
        "tokenized": TokenCount("done", store=page.__file__),  # type: ignore[arg-type]
    }
    return page.view.parts(usual | values)


def body(view: ViewState, **values: Any) -> str:
    """The part below the tabs, with white space as a browser shows it."""
    return " ".join(parts(view, **values)["body"].split())
