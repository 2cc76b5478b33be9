"""Building blocks of pages. Text from people and files goes through Markup.format, which escapes it."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TypedDict

import gradio as gr
from markupsafe import Markup, escape

from app.access import callers
from app.words import numbers
from app.words.runs import DIFFERS
from training.errors import UserError
from training.units import NONE
from worker.store.sight import HIDDEN
from worker.store.tables import Run, Status


class Handled(TypedDict):
    """Options of our handlers: not queued, hidden from the API, without Gradio's spinners."""

    queue: bool
    api_visibility: Literal["private"]
    show_progress: Literal["hidden"]


QUIET: Handled = {"queue": False, "api_visibility": "private", "show_progress": "hidden"}


def html(
    value: str = "",
    *,
    script: str | None = None,
    classes: str = "",
    visible: bool = True,
) -> gr.HTML:
    """A component of our own escaped HTML; `script` runs once with `element`, `trigger`, `props` and `watch`."""
    return gr.HTML(
        value, js_on_load=script, elem_classes=classes or None, visible=visible, apply_default_css=False, padding=False
    )


def title(heading: str, aside: Markup | str = "") -> gr.HTML:
    """The page's heading, with `aside` at its right."""
    return html(Markup('<div class="title"><h1>{}</h1><div class="aside">{}</div></div>').format(heading, aside))


def id_of(request: gr.Request) -> str:
    """The id in the page's address; the server keeps none."""
    return str(request.query_params.get("id", ""))


def each(template: str, items: Iterable[Iterable[Any]]) -> Markup:
    """The template filled with each item, concatenated."""
    return Markup("").join(Markup(template).format(*item) for item in items)  # noqa: S704 templates are ours; values are escaped


def user_error_html(error: UserError) -> Markup:
    """Every problem of an error, with its field, value and fix."""
    problems = [(one.field, str(one.value or "")[:200], one.message, one.fix) for one in error.problems]
    return each('<div class="alert" role="alert"><b>{}</b> <code>{}</code> {} <em>{}</em></div>', problems)


def status_word(status: Status, request: str | None = None, *, differs: bool = False) -> Markup:
    """The status as a colored dot and a word; a running run with a stop request is stopping. `differs`: as `Run.differs`."""
    word = "stopping" if status is Status.RUNNING and request == "stop" else status.value
    color = Status.FAILED.value if differs else status.value
    return status_dot(color, f"{word}, {DIFFERS}" if differs else word)


def run_link(run_id: str, name: str) -> Markup:
    """A link to a run; only its name if the user does not see the run."""
    if run_id.startswith(HIDDEN):
        return Markup("{}").format(name)
    return Markup('<a href="/run?id={}" title="{}">{}</a>').format(run_id, name, name)


def ago(epoch: float | None) -> Markup:
    """A time as "3 min ago", which the browser updates; the tooltip is the full date."""
    return _time(epoch, "ago")


def clock(epoch: float | None) -> Markup:
    """A time of day; the tooltip is the full date."""
    return _time(epoch, "clock")


def took(run: Run) -> Markup:
    """The duration of a run, from its first start to its end or now."""
    if run.started_at is None:
        return escape(NONE)
    if run.finished_at is None:
        return Markup('<span data-since="{}"></span>').format(f"{run.started_at:.0f}")
    return escape(numbers.duration(run.finished_at - run.started_at))


def problem_html(error: Exception) -> Markup:
    """A user error, or that the database is unreachable."""
    return user_error_html(error) if isinstance(error, UserError) else database_unreachable()


def plain_problem(error: Exception) -> Markup:
    """The same with a user error in one sentence."""
    if not isinstance(error, UserError):
        return database_unreachable()
    return Markup('<div class="alert" role="alert">{}</div>').format(str(error))


def note_html(text: Any) -> Markup:
    """A sentence below or above what it is about."""
    return Markup('<p class="note">{}</p>').format(text)


def not_found(heading: str, reason: str, address: str, label: str) -> Markup:
    """The page for an id that nothing has, with a link to what there is."""
    return Markup('<div class="empty"><h2>{}</h2><p>{}</p><a class="button" href="{}">{}</a></div>').format(
        heading, reason, address, label
    )


def database_unreachable() -> Markup:
    """The alert in the place of what cannot be read; a page with a timer retries."""
    return Markup(
        '<div class="alert" role="alert"><b>The database is unreachable.</b> No data is lost. Try again in a moment.</div>'
    )


def bar(share: float | None, *, label: str = "", classes: str = "") -> Markup:
    """A progress bar; indeterminate if `share` is None."""
    if share is None:
        return Markup('<span class="bar unknown {}" role="progressbar" aria-label="{}"><i></i></span>').format(
            classes, label
        )
    filled = Markup('<i style="width:{}%"></i>').format(f"{share * 100:.1f}")
    return Markup('<span class="bar {}" role="progressbar" aria-label="{}" aria-valuenow="{}">{}</span>').format(
        classes, label, round(share * 100), filled
    )


def rows(pairs: Iterable[tuple[str, Any]]) -> Markup:
    """Table rows of names and values."""
    return each("<tr><th>{}</th><td>{}</td></tr>", pairs)


def pairs_table(pairs: Iterable[tuple[str, Any]]) -> Markup:
    """A table of names and values."""
    return Markup('<table class="pairs">{}</table>').format(rows(pairs))


def status_dot(color: str, word: str) -> Markup:
    """A colored dot and a word."""
    return Markup('<span class="status status-{}"><i></i>{}</span>').format(color, word)


def send_button(
    label: str, action: Mapping[str, Any], about: str = "", *, busy: str = "", enabled: bool = True
) -> Markup:
    """A small button that sends an action to the page's handler; `about` is its name for screen readers."""
    off = Markup("") if enabled else Markup(" disabled")
    return Markup(
        '<button type="button" class="button small" data-send="{}" aria-label="{}" data-busy="{}"{}>{}</button>'
    ).format(json.dumps(action), about or label, busy, off, label)


def facts(pairs: list[tuple[str, Any]]) -> Markup:
    """A list of names above their values, side by side."""
    return Markup('<dl class="facts">{}</dl>').format(each("<div><dt>{}</dt><dd>{}</dd></div>", pairs))


def table(classes: str, heads: Markup | Iterable[Any], body: Markup) -> Markup:
    """A table in a box that scrolls sideways; `heads` are its heading cells, or what stands in them."""
    cells = heads if isinstance(heads, Markup) else each("<th>{}</th>", [(head,) for head in heads])
    template = Markup(
        '<div class="table-wrap"><table class="{}"><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>'
    )
    return template.format(classes, cells, body)


def share_button(kind: Literal["runs", "sweeps", "datasets"], object_id: str, owner: str) -> Markup:
    """The button that opens the dialog of static/share.js, for who may share it; nothing if all users see everything."""
    if not callers.current().may_share(owner):
        return Markup("")
    button = Markup('<button type="button" class="button" data-share="/api/{}/{}/shares">Share</button>')
    return button.format(kind, object_id)


def panel(heading: str, body: Markup, *, classes: str = "", aside: Markup | str = "") -> Markup:
    """A box with a heading."""
    return Markup(
        '<section class="panel {}"><header><h2>{}</h2><div class="aside">{}</div></header>{}</section>'
    ).format(classes, heading, aside, body)


def _time(epoch: float | None, form: str) -> Markup:
    if epoch is None:
        return escape(NONE)
    moment = datetime.fromtimestamp(epoch, UTC)
    return Markup('<time data-{}="{}" datetime="{}">{}</time>').format(
        form, f"{epoch:.0f}", moment.isoformat(timespec="seconds"), moment.strftime("%Y-%m-%d %H:%M UTC")
    )
