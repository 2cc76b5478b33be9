"""The page Sweep, at /sweep?id=SWEEP_ID: progress, results and plots of one sweep, which it stops or deletes."""

from typing import Any

from starlette.datastructures import QueryParams

from app.access import callers
from app.documents.comparison.document import MOST_RUNS
from app.documents.sweep import document
from app.format import sweep_text as words
from app.pages.common import diagnosis  # noqa: F401 what the template calls
from app.pages.common.cache import TimedCache
from app.pages.common.run_plots import plotted, strokes
from app.pages.common.view import Context, MissingError, View, why_missing
from app.texts import _
from worker.machine.sizes import size_of
from worker.settings import get_settings
from worker.store import database, sweeps
from worker.store.runs import LONGEST_ID
from worker.store.sweeps import SweepNotFound

_sizes: TimedCache[str, int] = TimedCache(seconds=60.0)


def sweep(query: QueryParams) -> Context:
    """The sweep of the address, with its runs in the order of its trials.

    Raises:
        MissingError: the address names none.
    """
    sweep_id = query.get("id", "")[:LONGEST_ID]
    try:
        with database.read() as session:
            shown = document(session, sweep_id).model_dump(mode="json")
            by_id = {run.id: run for run in sweeps.runs_of(session=session, sweep_ids=[shown["id"]])}
    except SweepNotFound:
        raise MissingError(_("Sweep not found"), why_missing(sweep_id), "/sweeps", _("Show all sweeps")) from None
    runs = [run for trial in shown["trials"] for run in trial["runs"]]
    may_change = callers.current().may_change(shown["owner"])
    return {
        "sweep": shown,
        "runs": runs,
        "compared": ",".join(run["id"] for run in runs[:MOST_RUNS]),
        "words": words,
        "may_change": may_change,
        "freed": _freed(shown["id"], runs) if may_change and shown["ended"] else 0,
        "may_share": callers.current().may_share(shown["owner"]),
        "strokes": strokes(run["id"] for run in runs[:MOST_RUNS]),
        "plotted": plotted([by_id[run["id"]] for run in runs if run["id"] in by_id][:MOST_RUNS]),
    }


def _freed(sweep_id: str, runs: list[dict[str, Any]]) -> int:
    """The bytes that deleting the sweep frees."""
    folder = get_settings().runs_dir
    return _sizes.get(sweep_id, lambda: sum(size_of(folder / run["id"]).bytes for run in runs))


view = View("/sweep", "sweep.html", sweep, seconds=3.0)
