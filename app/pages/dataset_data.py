"""What the page of a data set shows, read once for all viewers: the set, what uses it, and what its tokens say."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from app.cache import TimedCache
from app.pages.dataset_columns import KINDS, Seen, for_kind, kind_of, lacking, partial
from app.pages.dataset_curve import Curve, curve
from app.pages.dataset_tokens import Stops, Token
from app.pages.dataset_view import View
from training.formats import UNKNOWN
from training.lengths import usual_limits
from training.mapping import write_mapping
from training.token_store import TokenStore, open_store
from worker import database, datasets, measuring, previewing, runs, usage
from worker.measuring import Measurement
from worker.models import Dataset
from worker.settings import ROOT
from worker.usage import User

STARTER = "static/starter"
SAMPLE_ROWS = 3
_MODELS_NAMED = 12


@dataclass(frozen=True)
class Subject:
    """A data set with the runs that use it."""

    item: Dataset
    users: list[User]


@dataclass(frozen=True)
class Counted:
    """A data set tokenised for a model."""

    item: Dataset
    store: TokenStore

    def report(self, view: View) -> dict[str, Any]:
        """The numbers for the view's settings, as `lathe dataset check` prints them."""
        key = (str(self.store.folder), view.max_length, *_batching(view).values())
        return _reports.get(key, lambda: measuring.report(self.store, max_length=view.max_length, **_batching(view)))


_subjects: TimedCache[str, Subject] = TimedCache(seconds=1.0)
_seen: TimedCache[tuple[str, str], list[Seen]] = TimedCache(seconds=600.0)
_curves: TimedCache[tuple[str, int], Curve] = TimedCache(seconds=600.0, size=16)
_reports: TimedCache[tuple[Any, ...], dict[str, Any]] = TimedCache(seconds=600.0, size=32)
_most_cut: TimedCache[tuple[str, int], int | None] = TimedCache(seconds=600.0)
_models: TimedCache[None, list[str]] = TimedCache(seconds=10.0)


def subject(dataset_id: str) -> Subject:
    """The data set, at most a second old.

    Raises:
        DatasetNotFound: there is none.
    """
    return _subjects.get(dataset_id, lambda: _read(dataset_id))


def forget() -> None:
    """Makes the next look a fresh one."""
    _subjects.clear()


def models() -> list[tuple[str, str]]:
    """Models to propose, as (value, label): the starter's, then those of the runs, the latest first."""
    return [(STARTER, "Starter model"), *[(model, model) for model in _models.get(None, _trained_models)]]


def usual_model(found: Subject) -> str:
    """The model of the last run on this data set, else the starter's."""
    with database.read() as session:
        return next((runs.get(session=session, run_id=user.id).config["model"] for user in found.users), STARTER)


def mapping_of(view: View, item: Dataset) -> dict[str, str]:
    """The mapping that is being tried, else the one that is saved, else the one that the columns' names suggest."""
    if view.columns or view.kind:
        return partial(view.columns)
    if item.columns_map:
        return partial(item.columns_map)
    return for_kind({}, kind_of({}, item.shape), item.columns) if item.shape != UNKNOWN else {}


def kind_shown(view: View, item: Dataset) -> str:
    """Which kind of rows the mapping page shows roles for."""
    return view.kind if view.kind in KINDS else kind_of(mapping_of(view, item), item.shape)


def seen(item: Dataset, mapping: dict[str, str], kind: str) -> list[Seen]:
    """The first rows as the model would get them under a mapping; none while it is not whole."""
    if lacking(mapping, kind):
        return []
    line = write_mapping(mapping)
    return _seen.get((item.id, line), lambda: _previewed(item, line))


def quality(counted: Counted, view: View) -> dict[str, Any]:
    """Duplicates and empty rows with examples, rows counted from 1."""
    empty = [row + 1 for row in counted.store.facts["empty_examples"]]
    return counted.report(view) | {"empty_examples": empty}


def tokens(counted: Counted, view: View) -> list[Token]:
    """The view's row, token by token; none for a row that cannot train."""
    return list(measuring.rendered_row(counted.store, view.row - 1, view.max_length))


def stops(counted: Counted, view: View) -> Stops:
    """The rows that the token view offers to go to."""
    lengths = counted.store.lengths
    if not len(lengths):
        return Stops(0)
    key = (str(counted.store.folder), view.max_length)
    most_cut = _most_cut.get(key, lambda: _most_trained_cut(counted.store, view.max_length))
    return Stops(len(lengths), int(np.argmax(lengths)) + 1, most_cut, _next_untrained(counted.store, view))


def curve_of(counted: Counted, view: View) -> Curve:
    """What every possible cut-off would cost."""
    store = counted.store
    wanted = sorted({view.max_length, *usual_stops(store)})
    return _curves.get((str(store.folder), view.max_length), lambda: curve(store.lengths, store.first_trained, wanted))


def usual_stops(store: TokenStore) -> list[int]:
    """Maximum lengths to compare."""
    return usual_limits(int(store.lengths.max(initial=1)))


def _most_trained_cut(store: TokenStore, limit: int) -> int | None:
    """The row, from 1, that loses the most tokens that carry loss; None where no row loses any."""
    lost = store.trained_beyond(limit)
    return int(np.argmax(lost)) + 1 if lost.any() else None


def _next_untrained(store: TokenStore, view: View) -> int | None:
    """The next row after the view's, from 1 and round the end, that has tokens and teaches nothing."""
    first = store.first_trained
    rows = np.flatnonzero((store.lengths > 0) & ((first < 0) | (first >= view.max_length)))
    if not len(rows):
        return None
    later = rows[rows >= view.row]
    return int(later[0] if len(later) else rows[0]) + 1


def counted(item: Dataset, view: View) -> "Counted | Measurement":
    """The set's tokens for the view's model, or where the counting of them stands; it is started where nobody has yet."""
    model = local_model(view.model)
    path = datasets.path_of(item)
    found = measuring.measure(path, item.sha256, model, item.columns_map, rows=item.rows, name=item.name)
    return Counted(item, open_store(found.store)) if found.store else found


def again(item: Dataset, view: View) -> None:
    """Tries once more to count the tokens, where that failed."""
    path = datasets.path_of(item)
    measuring.measure(
        path, item.sha256, local_model(view.model), item.columns_map, rows=item.rows, name=item.name, retry=True
    )


def local_model(model: str) -> str:
    """The folder that a model's name means on this machine, else the name: a hub id."""
    try:
        return str(ROOT / model) if (ROOT / model).is_dir() else model
    except (OSError, ValueError):  # no name that a folder may have
        return model


def _read(dataset_id: str) -> Subject:
    with database.read() as session:
        item = datasets.get(session=session, dataset_id=dataset_id)
        return Subject(item, usage.users(session=session).get(item.id, []))


def _trained_models() -> list[str]:
    with database.read() as session:
        found = {str(run.config.get("model")): None for run in runs.listing(session=session, limit=200)}
    return [model for model in found if model not in (STARTER, str(ROOT / STARTER))][:_MODELS_NAMED]


def _previewed(item: Dataset, columns: str) -> list[Seen]:
    found = previewing.first_rows(datasets.path_of(item), SAMPLE_ROWS, columns)
    return [
        Seen(
            row["number"],
            [(label, said, learned) for label, said, learned in row.get("parts", [])],
            _told(row),
            row.get("fix", ""),
        )
        for row in found
    ]


def _told(row: dict[str, Any]) -> str:
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
