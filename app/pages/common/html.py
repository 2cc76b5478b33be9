"""Building blocks of pages. Text from people and files goes through Markup.format, which escapes it."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Literal, TypedDict

import gradio as gr
from markupsafe import Markup, escape

from app.texts import _
from training.errors import UserError
from training.units import NONE


class Handled(TypedDict):
    """Options of our handlers: not queued, hidden from the API, without Gradio's spinners."""

    queue: bool
    api_visibility: Literal["private"]
    show_progress: Literal["hidden"]


HTML = gr.HTML
UNQUEUED: Handled = {"queue": False, "api_visibility": "private", "show_progress": "hidden"}


def html(
    value: str = "",
    *,
    script: str | None = None,
    classes: str = "",
    visible: bool = True,
) -> HTML:
    """A component of our own escaped HTML; `script` runs once with `element`, `trigger`, `props` and `watch`."""
    return HTML(
        value, js_on_load=script, elem_classes=classes or None, visible=visible, apply_default_css=False, padding=False
    )


def title(name: str, aside: Markup | str = "") -> HTML:
    """The page's heading, with `aside` at its right."""
    return html(heading(name, aside))


def heading(name: str, aside: Markup | str = "") -> Markup:
    """The content of `title`."""
    return Markup('<div class="title"><h1>{}</h1><div class="aside">{}</div></div>').format(name, aside)


def each(template: str, items: Iterable[Iterable[Any]]) -> Markup:
    """The template filled with each item, concatenated."""
    return Markup("").join(Markup(template).format(*item) for item in items)  # noqa: S704 templates are ours; values are escaped


def user_error_html(error: UserError) -> Markup:
    """Every problem of an error, with its field, value and fix."""
    problems = [(one.field, str(one.value or "")[:200], one.message, one.fix) for one in error.problems]
    return each('<div class="alert" role="alert"><b>{}</b> <code>{}</code> {} <em>{}</em></div>', problems)


def ago(epoch: float | None) -> Markup:
    """A time as "3 min ago", which the browser updates; the tooltip is the full date."""
    if epoch is None:
        return escape(NONE)
    moment = datetime.fromtimestamp(epoch, UTC)
    return Markup('<time data-ago="{}" datetime="{}">{}</time>').format(
        f"{epoch:.0f}", moment.isoformat(timespec="seconds"), moment.strftime("%Y-%m-%d %H:%M UTC")
    )


def problem_html(error: Exception) -> Markup:
    """A user error, or that the database is unreachable."""
    return user_error_html(error) if isinstance(error, UserError) else database_unreachable()


def note_html(text: Any) -> Markup:
    """A sentence below or above what it is about."""
    return Markup('<p class="note">{}</p>').format(text)


def looking_html(text: Any) -> Markup:
    """What is done at the moment, until its result takes its place."""
    return Markup('<p class="note looking">{}</p>').format(text)


def database_unreachable() -> Markup:
    """The alert in the place of what cannot be read; a page with a timer retries."""
    return Markup('<div class="alert" role="alert"><b>{}</b> {}</div>').format(
        _("The database is unreachable."), _("No data is lost. Try again in a moment.")
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


def panel(heading: str, body: Markup, *, classes: str = "", aside: Markup | str = "") -> Markup:
    """A box with a heading."""
    return Markup(
        '<section class="panel {}"><header><h2>{}</h2><div class="aside">{}</div></header>{}</section>'
    ).format(classes, heading, aside, body)
