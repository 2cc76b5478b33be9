"""What a GPU hour and a kWh cost, on the page Settings."""

from typing import Any

import gradio as gr
from markupsafe import Markup

from app.access import notify
from app.pages.common.html import html, problem_html
from training.errors import UserError
from worker.store.database import UNREACHABLE


def price_form() -> tuple[Any, ...]:
    """The fields, the button that saves them, and its outcome."""
    text = "New run and lathe forecast estimate the cost of a run with them, in any currency."
    html(Markup('<header><h2>Prices</h2></header><p class="note">{}</p>').format(text))
    with gr.Row(elem_classes="add-channel"):
        gpu_hour = gr.Textbox(
            label="Price of a GPU hour", placeholder="2.50, or h100=2.50, l4=0.60", elem_id="price-gpu-hour",
            elem_classes="setting", scale=3,
        )  # fmt: skip
        kwh = gr.Textbox(
            label="Price of a kWh", placeholder="0.30", elem_id="price-kwh", elem_classes="setting", scale=2
        )
        save = gr.Button("Save", elem_id="save-prices", scale=0, min_width=90)
    return gpu_hour, kwh, save, html()


def prices_saved(gpu_hour: str, kwh: str) -> Markup:
    """Stores what a GPU hour and a kWh cost."""
    try:
        known = notify.set_prices(gpu_hour or "", kwh or "").known
    except (UserError, *UNREACHABLE) as error:
        return problem_html(error)
    text = "Forecasts show what a run costs." if known else "Forecasts show no costs."
    return Markup('<p class="note good" role="status">{}</p>').format(text)
