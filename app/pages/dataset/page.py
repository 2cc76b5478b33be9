"""The page of one data set, at /dataset?id=ID&tab=...: its rows, columns, tokens, lengths and batches."""

from dataclasses import replace
from typing import Any

from starlette.datastructures import QueryParams

from app.access import callers
from app.documents import dataset as documents
from app.format import dataset_text as words
from app.pages.common import mapped_rows
from app.pages.common import mapping as mappings
from app.pages.common.view import Context, MissingError, View, why_missing
from app.pages.dataset import snapshot
from app.pages.dataset import tokens as row_tokens
from app.pages.dataset.snapshot import PAGE_ROWS, STARTER
from app.pages.dataset.state import MEASURED, TABS, ViewState
from app.texts import _, gettext_noop
from training.data.mapping import write_mapping
from training.data.row_formats import UNKNOWN
from training.errors import DataError
from training.tokens.lengths import usual_limits
from training.tokens.store import TokenStore, open_store
from worker.datasets import row_pages, token_report
from worker.datasets.datasets import DatasetNotFound
from worker.store import database
from worker.store.tables import Dataset

WAITING_SECONDS, QUIET_SECONDS = 1.5, 10.0
_PAGES = {
    "first": gettext_noop("First"),
    "previous": gettext_noop("← Previous"),
    "next": gettext_noop("Next →"),
    "last": gettext_noop("Last"),
}

Move = tuple[str, str, str | None]
"""A link to another row: its id, its label, and its address; None if there is nothing to go to."""


def shown(query: QueryParams) -> Context:
    """The data set and the tab in the address."""
    pairs = query.multi_items()
    view = ViewState.of(pairs)
    item, document = _read(view.id)
    view = _complete(replace(view, id=item.id), document)
    tab, caller = {"rows": _rows, "columns": _columns}.get(view.tab, _measured), callers.current()
    return {
        "view": view,
        "dataset": document,
        "problems": view.problems(pairs),
        "models": snapshot.models(),
        "may_share": caller.may_share(item.owner),
        "may_change": caller.may_change(item.owner),
        "tabs": {tab: _(label) for tab, label in TABS.items()},
        "is_measured": view.tab in MEASURED,
        "words": words,
        "seconds": QUIET_SECONDS,
    } | tab(view, item)


def _read(dataset_id: str) -> tuple[Dataset, dict[str, Any]]:
    try:
        with database.read() as session:
            item = documents.find(session, dataset_id)
            return item, documents.document(session, item.id).model_dump(mode="json")
    except DatasetNotFound:
        raise MissingError(
            _("Data set not found"), why_missing(dataset_id), "/datasets", _("Show all data sets")
        ) from None


def _complete(view: ViewState, document: dict[str, Any]) -> ViewState:
    """The view with a row that exists, and a model that the caller may read: by default the last one trained on this data set."""
    model = view.model or snapshot.usual_model(document["runs"])
    readable = STARTER if callers.current().allowed.model(model) else model
    return replace(view, row=min(view.row, max(document["rows"], 1)), model=readable)


def _rows(view: ViewState, item: Dataset) -> Context:
    """The tab Rows: all rows by pages, or those that contain a text."""
    try:
        return _found(view, item) if view.search else _page(view, item)
    except DataError as error:
        subject = _("Row {number}").format(number=f"{error.line:,}") if error.line else _("The file")
        return {"unreadable": f"{subject} {error.message}", "fix": error.fix}


def _page(view: ViewState, item: Dataset) -> Context:
    rows, reachable = snapshot.rows(item, view), row_pages.reachable(item.format, item.rows)
    first = snapshot.first_row(view)
    last = rows[-1]["row"] if rows else first
    following = min(first + PAGE_ROWS, last + 1)
    moves = _moves(
        view,
        "row",
        first=1 if first > 1 else None,
        previous=max(first - PAGE_ROWS, 1) if first > 1 else None,
        next=following if following <= reachable else None,
        last=(reachable - 1) // PAGE_ROWS * PAGE_ROWS + 1 if last < reachable else None,
    )
    return {"rows": rows, "first": first, "last": last, "reachable": reachable, "moves": moves, "search": None}


def _found(view: ViewState, item: Dataset) -> Context:
    search = snapshot.search(item, view)
    state = search.state  # read before the rows: the last of them are not missed
    rows, count = snapshot.matches(item, view, search), len(search.matches)
    first = (view.match - 1) // PAGE_ROWS * PAGE_ROWS + 1
    moves = _moves(
        view,
        "match",
        previous=max(first - PAGE_ROWS, 1) if first > 1 else None,
        next=first + PAGE_ROWS if first + PAGE_ROWS <= count else None,
    )
    return {
        "rows": rows,
        "search": search,
        "state": state,
        "count": count,
        "first": first,
        "moves": moves,
        "seconds": WAITING_SECONDS if state == "running" else QUIET_SECONDS,
    }


def _moves(view: ViewState, name: str, **targets: int | None) -> list[Move]:
    """Links to the pages of rows that begin with these values of `name`; None where there is no such page."""
    return [
        (f"rows-{page}", _(_PAGES[page]), view.link(**{name: target, "whole": 0}) if target else None)
        for page, target in targets.items()
    ]


def _columns(view: ViewState, item: Dataset) -> Context:
    """The tab Columns: the mapping of columns to roles, with a preview of mapped rows."""
    mapping, kind = snapshot.mapping_of(view, item), snapshot.kind_shown(view, item)
    kinds = [
        (name, _(label), view.link(columns=write_mapping(mappings.for_kind(mapping, name, item.columns)), kind=name))
        for name, (label, roles) in mappings.KINDS.items()
    ]
    return {
        "mapping": mapping,
        "line": write_mapping(mapping),
        "kind": kind,
        "kinds": kinds,
        "roles": mappings.KINDS[kind][1],
        "missing": mappings.missing_roles(mapping, kind),
        "paths": mappings.paths(item.sample),
        "preview": mapped_rows.preview(item, mapping, kind),
    }


def _measured(view: ViewState, item: Dataset) -> Context:
    """A tab that needs the data set tokenized: starts it, and waits for it."""
    if item.row_format == UNKNOWN and not item.columns_map:
        return {"tokenized": None}
    count = snapshot.tokenized(item, view)
    if count.store is None:
        return {"tokenized": count, "seconds": QUIET_SECONDS if count.status == "failed" else WAITING_SECONDS}
    tab = {"tokens": _tokens, "lengths": _lengths, "batches": _batches}[view.tab]
    return {"tokenized": count} | tab(view, open_store(count.store))


def _tokens(view: ViewState, store: TokenStore) -> Context:
    """The tab Tokens: one row, token by token."""
    rows = len(store.lengths)
    if not rows:
        return {"tokens": [], "rows": 0, "moves": []}
    tokens = token_report.rendered_row(store, view.row - 1, view.max_length)
    targets = (
        ("go-previous", _("← Previous"), view.row - 1 or None),
        ("go-next", _("Next →"), view.row + 1 if view.row < rows else None),
        ("go-longest", _("Longest"), row_tokens.longest(store)),
        ("go-truncated", _("Most truncated"), snapshot.most_truncated(store, view.max_length)),
        ("go-untrained", _("No loss tokens"), row_tokens.next_untrained(store, view.max_length, view.row)),
    )
    moves: list[Move] = [(key, label, view.link(row=row) if row else None) for key, label, row in targets]
    return {
        "tokens": tokens,
        "counts": row_tokens.counts(tokens),
        "pieces": row_tokens.pieces(tokens),
        "rows": rows,
        "moves": moves,
    }


def _lengths(view: ViewState, store: TokenStore) -> Context:
    """The tab Lengths: how long the rows are, and what each maximum length truncates."""
    curve = snapshot.curve_of(store, view.max_length)
    return {
        "report": snapshot.report(store, view),
        "empty_examples": [[row + 1] for row in store.facts["empty_examples"]],
        "curve": curve,
        "loss": curve.at(view.max_length),
        "losses": [curve.at(limit) for limit in usual_limits(int(store.lengths.max(initial=1)))],
    }


def _batches(view: ViewState, store: TokenStore) -> Context:
    """The tab Batches: the longest batches of a run and the cost of padding."""
    return {"report": snapshot.report(store, view)}


view = View("/dataset", "dataset.html", shown)
