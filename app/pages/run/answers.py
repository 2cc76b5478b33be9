"""The answers of a run to held-out rows before and after training, on the page Run."""

from math import ceil
from typing import Any, Protocol

from starlette.datastructures import QueryParams

from app.documents.results.answers import Answers, Change, answers_of, differences
from app.format.numbers import capitalized
from app.texts import _
from worker.store.tables import Run

ALL = "all"
FEW, PAGE_ROWS = 5, 25


def shown(run: Run, query: QueryParams) -> dict[str, Any]:
    """The first answers; with `answers` in the query all of this kind of change, page by page."""
    answers, kind = answers_of(run.id) if run.status.ended else Answers(), query.get("answers", "")
    page = paged(answers.of(kind), query.get("answers_page", "")) if kind else {"rows": answers[:FEW]}
    return {
        "answers": page | {"kind": kind, "total": len(answers)},
        "answer_kinds": [
            (ALL, _("All ({number:,})").format(number=len(answers))),
            *((change.value, f"{capitalized(_(change.value))} ({answers.counts[change]:,})") for change in Change),
        ],
        "differences": differences,
    }


class Sliced(Protocol):
    """Rows that are read by slices."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Any: ...


def paged(rows: Sliced, page: str) -> dict[str, Any]:
    """A page of rows (from 1), and which rows these are."""
    part = page_of(len(rows), page, PAGE_ROWS)
    return part | {"rows": rows[part["first"] - 1 : part["last"]]}


def page_of(count: int, page: str, size: int) -> dict[str, Any]:
    """Which of `count` rows are on a page (from 1)."""
    pages = max(ceil(count / size), 1)
    number = min(max(int(page), 1), pages) if page.isascii() and page.isdecimal() and len(page) < 10 else 1
    first = (number - 1) * size
    return {"first": first + 1, "last": min(first + size, count), "of": count, "page": number, "pages": pages}
