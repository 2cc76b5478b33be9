"""The dialog that asks before something is changed for good."""

from dataclasses import dataclass
from typing import Any

import gradio as gr
from markupsafe import Markup

from app.pages.common.html import QUIET, html


@dataclass(frozen=True)
class Dialog:
    """Its components; `asked` holds what it is about."""

    box: gr.Column
    question: gr.HTML
    confirm: gr.Button
    asked: gr.State

    @property
    def outputs(self) -> list[Any]:
        """The components of `asking`, in its order."""
        return [self.box, self.question, self.confirm, self.asked]


def dialog(label: str, elem_id: str, question: Markup | str = "", cancel: str = "Cancel") -> Dialog:
    """A closed dialog with a button that closes it and a red one."""
    asked = gr.State({})
    with gr.Column(visible=False, elem_classes="dialog") as box, gr.Column(elem_classes="card"):
        shown = html(question)
        with gr.Row():
            keep = gr.Button(cancel, elem_classes="dialog-cancel")
            confirm = gr.Button(label, variant="stop", elem_id=elem_id)
    keep.click(lambda: gr.update(visible=False), None, box, **QUIET)
    return Dialog(box, shown, confirm, asked)


def asking(heading: str, text: str, label: str, asked: dict[str, Any]) -> list[Any]:
    """The open dialog with a question."""
    question = Markup("<h2>{}</h2><p>{}</p>").format(heading, text)
    return [gr.update(visible=True), question, gr.update(value=label, interactive=True), asked]
