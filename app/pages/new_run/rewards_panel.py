"""Below the settings of rewards on New run: what they give for the expected answers of the first rows, and what goes wrong."""

from dataclasses import dataclass
from typing import Any

import gradio as gr
from markupsafe import Markup

from app.access import callers
from app.documents.results import evaluations as documents
from app.format import reward_text as words
from app.pages.common import form
from app.pages.common.html import HTML, UNQUEUED, html, problem_html
from app.texts import _
from app.web.templating import PARTS, filled
from training.config.applies import Values
from training.errors import UserError
from worker.evaluations.reward_trial import try_run
from worker.store.database import UNREACHABLE

ROWS = 20


@dataclass(frozen=True)
class RewardsPanel:
    """The button and what the rewards gave, in a column that is hidden with the settings."""

    column: gr.Column
    ask: gr.Button
    answer: HTML


def build() -> RewardsPanel:
    """The components."""
    with gr.Column(visible=False, elem_classes="reward-trial") as column:
        ask = gr.Button("Try on rows", size="sm", elem_id="try-rewards")
        answer = html(classes="rendered")
    return RewardsPanel(column, ask, answer)


def wire(panel: RewardsPanel, inputs: list[Any]) -> None:
    """Scores rows when the button is pressed."""
    scoring = panel.ask.click(
        lambda: PARTS.note(_("Scoring the expected answers of the first rows. A reward may take up to 60 s."), "looking"),
        None, panel.answer, **UNQUEUED,
    )  # fmt: skip
    scoring.then(form.by_name(rewards_html), inputs, panel.answer, **UNQUEUED)


def rewards_html(values: Values) -> Markup:
    """What the rewards of the form's run give for the first rows, or why they cannot be tried."""
    if not values.get("data"):
        return PARTS.note(_("Choose a data set to try the rewards on its rows."))
    config = form.check({**values, "model": values.get("model") or "none"})
    if isinstance(config, list):
        return PARTS.note(_("Fix the problems above to try the rewards."))
    try:
        trial = documents.trial(try_run(config, ROWS, callers.current().allowed)).model_dump()
    except (UserError, *UNREACHABLE) as error:
        return problem_html(error)
    return filled("new_run/rewards.html", trial=trial, words=words)
