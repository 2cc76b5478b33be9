"""The dialog of the page Run that resumes a run with another strategy or number of processes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gradio as gr
from markupsafe import Markup

from app.access import changes
from app.pages.common.html import QUIET, html
from training.config.choice_texts import choice_label
from training.config.choices import Strategy
from training.config.run_config import RunConfig, stepped_down
from training.errors import UserError
from worker.store.tables import Run

Change = Callable[[str], object]
_TEXT = Markup(
    "<h2>Resume on other processes</h2><p>The run continues from its last checkpoint, which is resharded. The global batch size "
    "stays the same: the gradient accumulation steps change.</p>"
)


@dataclass(frozen=True)
class Dialog:
    """The components that the page wires."""

    box: gr.Column
    strategy: gr.Dropdown
    processes: gr.Textbox
    refused: gr.HTML
    confirm: gr.Button

    @property
    def opening(self) -> list[Any]:
        """The outputs of `opened`."""
        return [self.box, self.strategy, self.processes, self.refused]


def build() -> Dialog:
    """The dialog; its button "Cancel" closes it."""
    with gr.Column(visible=False, elem_classes="dialog") as box, gr.Column(elem_classes="card"):
        html(_TEXT)
        with gr.Row(elem_classes="settings"):
            choices = [(choice_label(one), one.value) for one in Strategy]
            strategy = gr.Dropdown(choices, label="Strategy", elem_classes="setting", elem_id="resume-strategy")
            processes = gr.Textbox(label="Processes", elem_classes="setting number", elem_id="resume-processes")
        refused = html()
        with gr.Row():
            cancel = gr.Button("Cancel", elem_classes="dialog-cancel")
            confirm = gr.Button("Resume", variant="primary", elem_id="confirm-resume")
    cancel.click(lambda: gr.update(visible=False), None, box, **QUIET)
    return Dialog(box, strategy, processes, refused, confirm)


def opened(run: Run) -> list[Any]:
    """Shows the dialog with the run's present settings."""
    config = stepped_down(RunConfig.model_validate(run.config), run.stepped_down)
    return [gr.update(visible=True), config.strategy.value, str(config.num_processes), ""]


def change(strategy: str | None, processes: str | None) -> Change:
    """What resumes a run with these settings; it raises UserError if they do not fit."""

    def resume(run_id: str) -> None:
        if strategy not in list(Strategy):
            raise UserError("strategy", strategy, "is not a strategy.", f"Choose one of {', '.join(Strategy)}.")
        number = (processes or "").strip()
        if not number.isdecimal() or int(number) < 1:
            raise UserError(
                "num_processes", processes, "is not a number of processes.", "Enter a whole number from 1 on."
            )
        changes.resume(run_id, strategy=Strategy(strategy), num_processes=int(number))

    return resume
