"""What the run trains on: some rows rendered with its chat template, token by token, and the faults found in them."""

from dataclasses import dataclass
from typing import Any

import gradio as gr
from markupsafe import Markup

from app.access import callers
from app.format.rows import heading
from app.format.setting_text import label
from app.pages.common import form
from app.pages.common.html import HTML, UNQUEUED, card_title, html
from app.texts import _
from app.web.templating import PARTS, filled
from training.config.applies import Values
from training.config.fields import ConfigError
from worker.runs.rows_check import check_rows
from worker.store.database import UNREACHABLE

_ABOUT = "Shows some rows as the run trains on them, and finds faults of the chat template. Start checks the same."


@dataclass(frozen=True)
class RowsPanel:
    """The button and the rendered rows."""

    show: gr.Button
    rows: HTML


def build() -> RowsPanel:
    """The components."""
    with gr.Column(elem_classes="card rows-card"):
        card_title("Rendered rows")
        show = gr.Button("Show rendered rows", size="sm", elem_id="render-rows")
        rows = html(PARTS.note(_ABOUT), script="lathe.sendClicks(element, trigger)", classes="rendered")
    return RowsPanel(show, rows)


def wire(panel: RowsPanel, inputs: list[Any]) -> None:
    """Renders the rows of the form's run when the button is pressed."""
    panel.show.click(
        lambda: PARTS.note(_("Rendering the first rows. This takes a few seconds."), "looking"),
        None,
        panel.rows,
        **UNQUEUED,
    ).then(form.by_name(rows_html), inputs, panel.rows, **UNQUEUED)


def rows_html(values: Values) -> Markup:
    """The rendered rows and faults of the form's run, or what it still needs."""
    if not values.get("model") or not values.get("data"):
        return PARTS.note(_("Choose a model and a data set to see rendered rows."))
    config = form.check(values)
    if isinstance(config, list):
        return PARTS.note(_("Fix the problems above to see rendered rows."))
    checked, problems = [], []
    try:
        checked = check_rows(config, callers.current().allowed)
    except ConfigError as error:
        problems = error.problems
    except UNREACHABLE:
        return PARTS.note(_("The database is unreachable. Try again."))
    return filled("new_run/rows.html", sets=checked, problems=problems, heading=heading, label=label)
