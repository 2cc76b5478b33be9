"""What the page of a data set reads, kept for a while for all viewers."""

from typing import Any

from app.pages.common.cache import TimedCache
from app.pages.common.form import local_model
from app.pages.common.mapping import KINDS, for_kind, kind_of, partial
from app.pages.dataset import tokens as row_tokens
from app.pages.dataset.state import ViewState
from app.pages.dataset.tokens import Curve, curve
from app.texts import _
from training.data.content_mapping import suggest_by_any
from training.data.row_formats import MAPPED, UNKNOWN
from training.tokens.lengths import usual_limits
from training.tokens.store import TokenStore
from worker.datasets import datasets, row_pages, row_search, token_report, token_stores
from worker.datasets.row_search import Search
from worker.datasets.token_stores import TokenCount
from worker.settings import ROOT
from worker.store import database, run_list
from worker.store.tables import Dataset, Run

STARTER = "static/starter"
PAGE_ROWS = 25
_MODELS_NAMED = 12

Row = dict[str, Any]
"""A row as `training.data.files.browse.document` describes it."""

_curves: TimedCache[tuple[str, int], Curve] = TimedCache(seconds=600.0, size=16)
_reports: TimedCache[tuple[Any, ...], dict[str, Any]] = TimedCache(seconds=600.0, size=32)
_most_cut: TimedCache[tuple[str, int], int | None] = TimedCache(seconds=600.0)
_pages: TimedCache[tuple[str, int, int], list[Row]] = TimedCache(seconds=600.0, size=16)
_models: TimedCache[None, list[str]] = TimedCache(seconds=10.0)


def models() -> list[tuple[str, str]]:
    """Suggested models as (value, label): the starter model, then the models of runs, latest first."""
    return [(STARTER, _("Starter model")), *[(model, model) for model in _models.get(None, _trained_models)]]


def usual_model(users: list[dict[str, Any]]) -> str:
    """The model of the last run of those that use a data set, else the starter model."""
    with database.read() as session:
        seen = (session.get(Run, user["id"]) for user in users)
        return next((run.config["model"] for run in seen if run), STARTER)


def mapping_of(view: ViewState, item: Dataset) -> dict[str, str]:
    """The address's unsaved mapping, else the saved one, else the one that the columns suggest."""
    if view.columns or view.kind:
        return partial(view.columns)
    if item.columns_map:
        return partial(item.columns_map)
    if item.row_format != UNKNOWN:
        return for_kind({}, kind_of({}, item.row_format), item.columns)
    return partial(suggest_by_any(item.sample) or "")


def kind_shown(view: ViewState, item: Dataset) -> str:
    """The kind of rows on the tab Columns."""
    shape = MAPPED if item.columns_map and not view.columns else item.row_format
    return view.kind if view.kind in KINDS else kind_of(mapping_of(view, item), shape)


def rows(item: Dataset, view: ViewState) -> list[Row]:
    """The page of rows that contains the view's row. Raises DataError if they are out of reach, or cannot be read."""
    row_pages.prepare(datasets.path_of(item))
    return [_whole(item, view, row) for row in _page(item, first_row(view), PAGE_ROWS)]


def first_row(view: ViewState) -> int:
    """The first row of the page that contains the view's row."""
    return (view.row - 1) // PAGE_ROWS * PAGE_ROWS + 1


def search(item: Dataset, view: ViewState) -> Search:
    """The search for the view's text."""
    return row_search.search(datasets.path_of(item), view.search)


def matches(item: Dataset, view: ViewState, search: Search) -> list[Row]:
    """The page of the rows found, the view's row in full."""
    first = (view.match - 1) // PAGE_ROWS * PAGE_ROWS
    return [_whole(item, view, row) for row in search.matches[first : first + PAGE_ROWS]]


def tokenized(item: Dataset, view: ViewState) -> TokenCount:
    """How far the data set is tokenized for the view's model; starts it if nobody has."""
    path, model = datasets.path_of(item), local_model(view.model)
    return token_stores.measure(path, item.sha256, model, item.columns_map, rows=item.rows, name=item.name)


def report(store: TokenStore, view: ViewState) -> dict[str, Any]:
    """The token report for the view's settings, as `lathe dataset check` prints it."""
    batching: dict[str, Any] = {
        "micro_batch": view.micro_batch_size,
        "accumulation": view.gradient_accumulation_steps,
        "world": view.num_processes,
        "seed": view.seed,
        "epochs": view.epochs,
        "eval_split": view.eval_split,
    }
    key = (str(store.folder), view.max_length, *batching.values())
    return _reports.get(key, lambda: token_report.report(store, max_length=view.max_length, **batching))


def curve_of(store: TokenStore, limit: int) -> Curve:
    """The losses at each possible maximum length, `limit` among them."""
    wanted = sorted({limit, *usual_limits(int(store.lengths.max(initial=1)))})
    return _curves.get((str(store.folder), limit), lambda: curve(store.lengths, store.first_trained, wanted))


def most_truncated(store: TokenStore, limit: int) -> int | None:
    """As in app/pages/dataset/tokens.py."""
    return _most_cut.get((str(store.folder), limit), lambda: row_tokens.most_truncated(store, limit))


def _whole(item: Dataset, view: ViewState, row: Row) -> Row:
    """The row, in full if the view asks for it."""
    return next(iter(_page(item, view.whole, 1)), row) if row["row"] == view.whole else row


def _page(item: Dataset, first: int, count: int) -> list[Row]:
    path = datasets.path_of(item)
    return _pages.get((item.id, first, count), lambda: row_pages.page(path, first, count))


def _trained_models() -> list[str]:
    with database.read() as session:
        unique = {str(run.config.get("model")): None for run in run_list.listing(session=session)}
    return [model for model in unique if model not in (STARTER, str(ROOT / STARTER))][:_MODELS_NAMED]
