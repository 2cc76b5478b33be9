"""The answers of a run to held-out rows before and after training, on the page Run."""

from collections.abc import Sequence
from math import ceil
from typing import Any

from starlette.datastructures import QueryParams

from app.documents.results.answers import Change, answers_of, counts, differences
from app.format.numbers import capitalized
from app.texts import _
from worker.store.tables import Run

ALL = "all"
FEW, PAGE_ROWS = 5, 25


def shown(run: Run, query: QueryParams) -> dict[str, Any]:
    """The first answers; with `answers` in the query all of this kind of change, page by page."""
    answers, kind = answers_of(run.id) if run.status.ended else (), query.get("answers", "")
    chosen = [answer for answer in answers if kind in ("", ALL, answer.change)]
    page = paged(chosen, query.get("answers_page", "")) if kind else {"rows": chosen[:FEW]}
    numbers = counts(answers)
    return {
        "answers": page | {"kind": kind, "total": len(answers)},
        "answer_kinds": [
            (ALL, _("All ({number:,})").format(number=len(answers))),
            *((change.value, f"{capitalized(_(change.value))} ({numbers[change]:,})") for change in Change),
        ],
        "differences": differences,
    }


def paged(rows: Sequence[Any], page: str) -> dict[str, Any]:
    """A page of rows (from 1), and which rows these are."""
    pages = max(ceil(len(rows) / PAGE_ROWS), 1)
    number = min(max(int(page), 1), pages) if page.isascii() and page.isdecimal() and len(page) < 10 else 1
    first = (number - 1) * PAGE_ROWS
    some = rows[first : first + PAGE_ROWS]
    return {
        "rows": some,
        "first": first + 1,
        "last": first + len(some),
        "of": len(rows),
        "page": number,
        "pages": pages,
    }
