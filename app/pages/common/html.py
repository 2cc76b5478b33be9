"""Building blocks of the pages that are filled in. Text from people and files is escaped, by templates and by Markup.format."""

from datetime import UTC, datetime
from typing import Literal, TypedDict

import gradio as gr
from markupsafe import Markup, escape

from app.texts import _
from app.web.templating import PARTS
from training.errors import UserError
from training.units import NONE
from worker.store.tables import Run


class Handled(TypedDict):
    """Options of our handlers: not queued, hidden from the API, without Gradio's spinners."""

    queue: bool
    api_visibility: Literal["private"]
    show_progress: Literal["hidden"]


HTML = gr.HTML
GO = "(address) => { if (address) window.location.assign(address) }"
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
    return html(PARTS.title(name, aside))


def card_title(name: str) -> HTML:
    """The heading of a card."""
    return html(Markup("<header><h2>{}</h2></header>").format(name))


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
    return PARTS.refusals(error.problems) if isinstance(error, UserError) else database_unreachable()


def banner_html(sentence: str, run: Run) -> Markup:
    """A sentence in which {run} is a link to a run."""
    link = PARTS.run_link(run.id, run.name)
    return Markup('<div class="banner">{}</div>').format(escape(sentence).format(run=link))


def database_unreachable() -> Markup:
    """The alert in the place of what cannot be read; a page with a timer retries."""
    return PARTS.alert(_("The database is unreachable."), _("No data is lost. Try again in a moment."))
