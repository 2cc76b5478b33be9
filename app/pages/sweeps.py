"""The page Sweeps, at /sweeps: all sweeps with their progress and best configuration."""

from typing import Any

import gradio as gr
from markupsafe import Markup

from app.documents.sweep import brief
from app.pages.common.cache import TimedCache
from app.pages.common.html import QUIET, ago, database_unreachable, each, html, table, title
from app.pages.common.viewers import Viewers
from app.words import sweeps as words
from worker.store import database, sweeps
from worker.store.database import UNREACHABLE

_REFRESH_SECONDS = 5.0
_HEADS = (("Name", ""), ("Method", ""), ("Runs", ""), ("Best", ""), ("Saved", ""), ("Owner", ""), ("Started", "number"))
_NEW = Markup('<a class="button primary" href="/new-sweep">New sweep</a>')

_lists: TimedCache[None, str] = TimedCache(seconds=2.0)
_viewers: Viewers[str] = Viewers()


def build(demo: gr.Blocks) -> None:
    """Components, handlers and wiring of the page."""
    title("Sweeps", _NEW)
    listed = html(script="watch('value', lathe.updateTimes); lathe.updateTimes()")
    demo.load(sweeps_opened, None, listed, **QUIET)
    gr.Timer(_REFRESH_SECONDS).tick(sweeps_ticked, None, listed, **QUIET)


def sweeps_opened(request: gr.Request) -> Any:
    """The list."""
    return _viewers.serve(request.session_hash, lambda _: _changed(None))


def sweeps_ticked(request: gr.Request) -> Any:
    """The list, if it has changed."""
    return _viewers.serve(request.session_hash, _changed)


def _changed(before: str | None) -> tuple[str, Any]:
    now = _lists.get(None, _list)
    return now, gr.skip() if now == before else now


def _list() -> str:
    try:
        with database.read() as session:
            found = [brief(session, sweep) for sweep in sweeps.listing(session=session)]
    except UNREACHABLE:
        return str(database_unreachable())
    return str(_table(found) if found else _empty())


def _table(found: list[dict[str, Any]]) -> Markup:
    heads = each('<th class="{}"><span>{}</span></th>', [(kind, head) for head, kind in _HEADS])
    rows = [
        (
            one["id"],
            one["name"],
            words.METHODS[one["method"]],
            words.progress(one),
            words.best(one),
            words.saved(one),
            one["owner"],
            ago(one["created_at"]),
        )
        for one in found
    ]
    row = (
        '<tr><td class="name"><a href="/sweep?id={}">{}</a></td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>'
        '<td class="number">{}</td></tr>'
    )
    return table("runs sets", heads, each(row, rows))


def _empty() -> Markup:
    return Markup(
        '<div class="empty"><h2>No sweeps yet</h2><p>A sweep trains one configuration with several values of some settings, '
        "such as learning rate and LoRA r, and names the best. Before it starts, you see how many runs there are, how long they "
        "take and which do not fit.</p>{}</div>"
    ).format(_NEW)
