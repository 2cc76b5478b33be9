"""Rows of a data set as a dictionary, which `lathe dataset rows --json` prints and REST returns."""

from typing import Any

from training.config.fields import ConfigError
from training.errors import Problem
from worker.datasets import datasets, row_pages, row_search
from worker.store.tables import Dataset

MOST = 200
"""Rows in one answer."""


def document(item: Dataset, offset: int, limit: int, search: str = "", *, seconds: float) -> dict[str, Any]:
    """The rows after the first `offset`, or those of them that contain `search`; `next` is the offset of the rows after them.

    A search that takes more than `seconds` continues in the background. `complete` is then false; the same search later returns
    more rows.

    Raises:
        ConfigError: no character of the search can be searched for.
        DataError: the rows cannot be read.
    """
    if search:
        return _found(item, offset, limit, search, seconds)
    path = datasets.path_of(item)
    count = min(limit, item.rows - offset)
    rows = row_pages.page(path, offset + 1, count) if count > 0 else []
    end = offset + len(rows)
    return {"rows": rows, "offset": offset, "total": item.rows, "next": end if end < item.rows else None}


def _found(item: Dataset, offset: int, limit: int, text: str, seconds: float) -> dict[str, Any]:
    if not row_search.plain(text):
        raise ConfigError([Problem("search", text[:50], "contains no text.", "Give the text to search for.")])
    search = row_search.search(datasets.path_of(item), text, again=True)
    search.wait(offset + limit + 1, seconds)
    complete = search.state != "running"
    if search.problem:
        raise ConfigError([Problem("search", text[:50], search.problem, "Check the file: lathe dataset check FILE")])
    found = list(search.matches)
    end = offset + limit
    return {
        "rows": found[offset:end],
        "offset": offset,
        "total": len(found),
        "next": end if end < len(found) else None,
        "complete": complete,
        "more": search.more,
        "searched": item.rows if complete and not search.more else search.read,
    }
