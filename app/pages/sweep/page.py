"""The page Sweep, at /sweep?id=SWEEP_ID: it reads the database every few seconds, and stops or deletes the sweep on request."""

from dataclasses import dataclass
from typing import Any

import gradio as gr
from markupsafe import Markup

from app.access import callers, changes
from app.documents.comparison.document import MOST_RUNS
from app.documents.sweep import document
from app.pages.common import viewers
from app.pages.common.cache import TimedCache
from app.pages.common.dialog import asking, dialog
from app.pages.common.html import QUIET, database_unreachable, html, not_found, plain_problem
from app.pages.common.run_plots import plotted, run_plots
from app.pages.common.viewers import Viewers
from app.pages.sweep import html as parts_html
from app.words import sweeps as words
from training.errors import UserError
from training.units import byte_size
from worker.machine.sizes import size_of
from worker.settings import get_settings
from worker.store import database, sweeps
from worker.store.database import UNREACHABLE
from worker.store.sweeps import SweepNotFound
from worker.store.tables import Run

_REFRESH_SECONDS = 3.0
_TIMES = "watch('value', lathe.updateTimes); lathe.updateTimes()"


@dataclass(frozen=True)
class Shown:
    """What a browser shows: the parts of the page, and whether the caller may stop or delete the sweep."""

    heading: str = ""
    links: str = ""
    standing: str = ""
    trials: str = ""
    plots: str = ""
    stoppable: bool = False
    deletable: bool = False


_found: TimedCache[str, tuple[dict[str, Any], list[Run]]] = TimedCache(seconds=1.0)
_viewers: Viewers[Shown] = Viewers()


def build(demo: gr.Blocks) -> None:
    """Components, handlers and wiring of the page."""
    with gr.Row(elem_classes="title-row"):
        heading = html(script=_TIMES)
        stop = gr.Button("Stop", size="md", visible=False, scale=0, elem_id="stop-sweep")
        delete = gr.Button("Delete", size="md", visible=False, scale=0, elem_id="delete-sweep")
        links = html()
    refusal, standing, trials = html(), html(), html()
    plots = run_plots()
    parts = [heading, links, standing, trials, plots, stop, delete]
    demo.load(sweep_opened, None, parts, **QUIET)
    gr.Timer(_REFRESH_SECONDS).tick(sweep_ticked, None, parts, **QUIET)
    stops = dialog("Stop", "confirm-stop-sweep")
    stop.click(stop_pressed, None, [stops.box, stops.question], **QUIET)
    stops.confirm.click(stop_confirmed, None, [stops.box, refusal, *parts], **QUIET)
    asks, address = dialog("Delete", "confirm-delete-sweep"), gr.Textbox(visible=False)
    delete.click(delete_pressed, None, asks.outputs, **QUIET)
    deleted = asks.confirm.click(delete_confirmed, None, [asks.box, refusal, address], **QUIET)
    deleted.then(None, address, None, js="(address) => { if (address) window.location.assign(address) }")


def sweep_opened(request: gr.Request) -> list[Any]:
    """All parts of the page."""
    return _viewers.serve(request.session_hash, lambda _: _changed(_id(request), None))


def sweep_ticked(request: gr.Request) -> list[Any]:
    """The parts that have changed."""
    return _viewers.serve(request.session_hash, lambda before: _changed(_id(request), before))


def stop_pressed(request: gr.Request) -> list[Any]:
    """Asks before the sweep is stopped."""
    try:
        return [gr.update(visible=True), parts_html.question(_read(_id(request))[0])]
    except (UserError, *UNREACHABLE) as error:
        return [gr.update(visible=True), Markup("<h2>Not possible now</h2><p>{}</p>").format(str(error))]


def stop_confirmed(request: gr.Request) -> list[Any]:
    """Stops the sweep, or shows why it is refused."""
    refusal = Markup("")
    try:
        changes.stop_sweep(_id(request))
    except (UserError, *UNREACHABLE) as error:
        refusal = plain_problem(error)
    _found.clear()
    return [gr.update(visible=False), refusal, *sweep_ticked(request)]


def delete_pressed(request: gr.Request) -> list[Any]:
    """Asks before the sweep is deleted, and says what is lost."""
    try:
        found = _read(_id(request))[0]
    except (UserError, *UNREACHABLE) as error:
        return [*asking("Not possible now", str(error), "Delete", {})[:2], gr.update(interactive=False), {}]
    freed = sum(
        size_of(get_settings().runs_dir / run["id"]).bytes for trial in found["trials"] for run in trial["runs"]
    )
    text = f"{words.lost(found)} This frees {byte_size(freed)} on disk and cannot be undone."
    return asking(f"Delete {found['name']}?", text, "Delete", {})


def delete_confirmed(request: gr.Request) -> list[Any]:
    """Deletes the sweep and opens the page Sweeps, or shows why it is refused."""
    refusal, address = Markup(""), ""
    try:
        changes.delete_sweep(_id(request))
        address = "/sweeps"
    except (UserError, *UNREACHABLE) as error:
        refusal = plain_problem(error)
    _found.clear()
    return [gr.update(visible=False), refusal, address]


def _id(request: gr.Request) -> str:
    return str(request.query_params.get("id", ""))[:40]


def _read(sweep_id: str) -> tuple[dict[str, Any], list[Run]]:
    """The sweep's document, and the runs of its plots in the order of its trials."""

    def read() -> tuple[dict[str, Any], list[Run]]:
        with database.read() as session:
            found = document(session, sweep_id)
            by_id = {run.id: run for run in sweeps.runs_of(session=session, sweep_ids=[found["id"]])}
        order = [run["id"] for trial in found["trials"] for run in trial["runs"]]
        return found, [by_id[run_id] for run_id in order if run_id in by_id][:MOST_RUNS]

    return _found.get(sweep_id, read)


def _changed(sweep_id: str, before: Shown | None) -> tuple[Shown, list[Any]]:
    now = _shown(sweep_id)
    return now, viewers.changes(_outputs(now), _outputs(before) if before else None)


def _outputs(shown: Shown) -> list[Any]:
    buttons = [gr.update(visible=state) for state in (shown.stoppable, shown.deletable)]
    return [shown.heading, shown.links, shown.standing, shown.trials, shown.plots, *buttons]


def _shown(sweep_id: str) -> Shown:
    try:
        found, runs = _read(sweep_id)
    except SweepNotFound as error:
        reason = str(error) if sweep_id else "The address has no sweep id."
        return Shown(heading=str(not_found("No such sweep", reason, "/sweeps", "All sweeps")))
    except UNREACHABLE:
        return Shown(heading=str(database_unreachable()))
    parts = (parts_html.heading(found), parts_html.links(found), parts_html.standing(found), parts_html.trials(found))
    allowed = callers.current().may_change(found["owner"])
    heading, links, standing, trials = map(str, parts)
    return Shown(
        heading, links, standing, trials, plotted(runs), allowed and not found["ended"], allowed and found["ended"]
    )
