"""The data of a data set's page, read once for all viewers: the data set, its runs and its tokens."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from app.pages.common.cache import TimedCache
from app.pages.common.form import local_model
from app.pages.common.tokens import Token
from app.pages.dataset.columns import KINDS, MappedRow, for_kind, kind_of, missing_roles, partial
from app.pages.dataset.lengths import Curve, curve
from app.pages.dataset.rows import PAGE_ROWS, Row, first_row
from app.pages.dataset.tokens import Stops
from app.pages.dataset.view import View
from training.data.mapping import write_mapping
from training.data.row_formats import UNKNOWN
from training.data.suggested_mapping import suggest
from training.tokens.lengths import usual_limits
from training.tokens.store import TokenStore, open_store
from worker.datasets import datasets, previewing, row_pages, row_search, token_counts, token_report
from worker.datasets.row_search import Search
from worker.datasets.token_counts import TokenCount
from worker.settings import ROOT
from worker.store import database, dataset_uses, runs
from worker.store.dataset_uses import DatasetUse
from worker.store.listed import run_list
from worker.store.tables import Dataset

STARTER = "static/starter"
SAMPLE_ROWS = 3
_MODELS_NAMED = 12


@dataclass(frozen=True)
class Subject:
    """A data set with the runs that use it."""

    item: Dataset
    users: list[DatasetUse]


@dataclass(frozen=True)
class Tokenized:
    """A data set tokenized for a model."""

    item: Dataset
    store: TokenStore

    def report(self, view: View) -> dict[str, Any]:
        """The token report for the view's settings, as `lathe dataset check` prints it."""
        key = (str(self.store.folder), view.max_length, *_batching(view).values())
        return _reports.get(key, lambda: token_report.report(self.store, max_length=view.max_length, **_batching(view)))


_subjects: TimedCache[str, Subject] = TimedCache(seconds=1.0)
_previews: TimedCache[tuple[str, str], list[MappedRow]] = TimedCache(seconds=600.0)
_curves: TimedCache[tuple[str, int], Curve] = TimedCache(seconds=600.0, size=16)
_reports: TimedCache[tuple[Any, ...], dict[str, Any]] = TimedCache(seconds=600.0, size=32)
_most_cut: TimedCache[tuple[str, int], int | None] = TimedCache(seconds=600.0)
_pages: TimedCache[tuple[str, int, int], list[Row]] = TimedCache(seconds=600.0, size=16)
_models: TimedCache[None, list[str]] = TimedCache(seconds=10.0)


def subject(dataset_id: str) -> Subject:
    """The data set, at most one second old.

    Raises:
        DatasetNotFound: no data set has this id.
    """
    return _subjects.get(dataset_id, lambda: _read(dataset_id))


def forget() -> None:
    """Clears the cache of data sets."""
    _subjects.clear()


def models() -> list[tuple[str, str]]:
    """Suggested models as (value, label): the starter model, then the models of runs, latest first."""
    return [(STARTER, "Starter model"), *[(model, model) for model in _models.get(None, _trained_models)]]


def usual_model(subject: Subject) -> str:
    """The model of the last run on this data set, else the starter model."""
    with database.read() as session:
        return next((runs.get(session=session, run_id=user.id).config["model"] for user in subject.users), STARTER)


def mapping_of(view: View, item: Dataset) -> dict[str, str]:
    """The view's unsaved mapping, else the saved one, else the one that the columns' names suggest."""
    if view.columns or view.kind:
        return partial(view.columns)
    if item.columns_map:
        return partial(item.columns_map)
    return (
        for_kind({}, kind_of({}, item.shape), item.columns)
        if item.shape != UNKNOWN
        else partial(suggest(item.sample) or "")
    )


def kind_shown(view: View, item: Dataset) -> str:
    """The kind of rows on the tab Columns."""
    return view.kind if view.kind in KINDS else kind_of(mapping_of(view, item), item.shape)


def preview(item: Dataset, mapping: dict[str, str], kind: str) -> list[MappedRow]:
    """The first rows under a mapping; none while the mapping is incomplete."""
    if missing_roles(mapping, kind):
        return []
    line = write_mapping(mapping)
    return _previews.get((item.id, line), lambda: _mapped_rows(item, line))


def rows(item: Dataset, view: View) -> list[Row]:
    """The page of rows that contains the view's row.

    Raises:
        DataError: they are out of reach, or cannot be read.
    """
    row_pages.prepare(datasets.path_of(item))
    return [_whole(item, view, row) for row in _page(item, first_row(view), PAGE_ROWS)]


def search(item: Dataset, view: View, *, again: bool = False) -> Search:
    """The search for the view's text; with `again`, a stopped one starts anew."""
    return row_search.search(datasets.path_of(item), view.search, again=again)


def with_whole(item: Dataset, view: View, search: Search) -> Search:
    """The search, with the view's row in full if it was found."""
    return replace(search, matches=[dict(_whole(item, view, row)) for row in search.matches])


def reachable(item: Dataset) -> int:
    """The last row that pages show."""
    return row_pages.reachable(item.format, item.rows)


def _whole(item: Dataset, view: View, row: Row) -> Row:
    """The row, in full if the view asks for it."""
    return next(iter(_page(item, view.whole, 1)), row) if row["row"] == view.whole else row


def _page(item: Dataset, first: int, count: int) -> list[Row]:
    path = datasets.path_of(item)
    return _pages.get((item.id, first, count), lambda: list(row_pages.page(path, first, count)))


def quality(tokenized: Tokenized, view: View) -> dict[str, Any]:
    """Duplicates and empty rows with examples, rows counted from 1."""
    empty = [row + 1 for row in tokenized.store.facts["empty_examples"]]
    return tokenized.report(view) | {"empty_examples": empty}


def tokens(tokenized: Tokenized, view: View) -> list[Token]:
    """The tokens of the view's row; none for a skipped row."""
    return list(token_report.rendered_row(tokenized.store, view.row - 1, view.max_length))


def stops(tokenized: Tokenized, view: View) -> Stops:
    """The rows that the tab Tokens links to."""
    lengths = tokenized.store.lengths
    if not len(lengths):
        return Stops(0)
    key = (str(tokenized.store.folder), view.max_length)
    most_cut = _most_cut.get(key, lambda: _most_trained_cut(tokenized.store, view.max_length))
    return Stops(len(lengths), int(np.argmax(lengths)) + 1, most_cut, _next_untrained(tokenized.store, view))


def curve_of(tokenized: Tokenized, view: View) -> Curve:
    """The losses at each possible maximum length."""
    store = tokenized.store
    wanted = sorted({view.max_length, *usual_stops(store)})
    return _curves.get((str(store.folder), view.max_length), lambda: curve(store.lengths, store.first_trained, wanted))


def usual_stops(store: TokenStore) -> list[int]:
    """Maximum lengths to compare."""
    return usual_limits(int(store.lengths.max(initial=1)))


def _most_trained_cut(store: TokenStore, limit: int) -> int | None:
    """The row (from 1) with the most truncated loss tokens; None if no row has any."""
    lost = store.trained_beyond(limit)
    return int(np.argmax(lost)) + 1 if lost.any() else None


def _next_untrained(store: TokenStore, view: View) -> int | None:
    """The next row (from 1, wrapping around) after the view's that has tokens but no loss tokens."""
    first = store.first_trained
    rows = np.flatnonzero((store.lengths > 0) & ((first < 0) | (first >= view.max_length)))
    if not len(rows):
        return None
    later = rows[rows >= view.row]
    return int(later[0] if len(later) else rows[0]) + 1


def tokenized(item: Dataset, view: View) -> "Tokenized | TokenCount":
    """The data set tokenized for the view's model, or the progress of tokenizing, which it starts if nobody has."""
    model = local_model(view.model)
    path = datasets.path_of(item)
    state = token_counts.measure(path, item.sha256, model, item.columns_map, rows=item.rows, name=item.name)
    return Tokenized(item, open_store(state.store)) if state.store else state


def retry(item: Dataset, view: View) -> None:
    """Starts tokenizing again after a failure."""
    path = datasets.path_of(item)
    token_counts.measure(
        path, item.sha256, local_model(view.model), item.columns_map, rows=item.rows, name=item.name, retry=True
    )


def _read(dataset_id: str) -> Subject:
    with database.read() as session:
        item = datasets.get(session=session, dataset_id=dataset_id)
        return Subject(item, dataset_uses.users(session=session).get(item.id, []))


def _trained_models() -> list[str]:
    with database.read() as session:
        unique = {str(run.config.get("model")): None for run in run_list.listing(session=session, limit=200)}
    return [model for model in unique if model not in (STARTER, str(ROOT / STARTER))][:_MODELS_NAMED]


def _mapped_rows(item: Dataset, columns: str) -> list[MappedRow]:
    return [
        MappedRow(row["number"], [tuple(part) for part in row.get("parts", [])], _problem(row), row.get("fix", ""))
        for row in previewing.first_rows(datasets.path_of(item), SAMPLE_ROWS, columns)
    ]


def _problem(row: dict[str, Any]) -> str:
    return f"{row.get('field') or ''} {row['problem']}".strip() if "problem" in row else ""


def _batching(view: View) -> dict[str, Any]:
    return {
        "micro_batch": view.micro_batch_size,
        "accumulation": view.gradient_accumulation_steps,
        "world": view.num_processes,
        "seed": view.seed,
        "epochs": view.epochs,
        "eval_split": view.eval_split,
    }
