"""The plots of several runs: one for each metric, scatter and parallel coordinates (static/compare-plots.js)."""

import json
from collections.abc import Sequence

import gradio as gr

from worker.store.tables import Run

_TEMPLATE = (
    '<section class="panel compare-plots" hidden></section><section class="panel compare-relations" hidden></section>'
)


def run_plots() -> gr.HTML:
    """The component; its value is `plotted`, empty without runs."""
    return gr.HTML(
        html_template=_TEMPLATE,
        js_on_load="lathe.comparePlots(element, props, watch)",
        apply_default_css=False,
        padding=False,
    )


def plotted(runs: Sequence[Run]) -> str:
    """The runs as JSON; `stored` changes with a run's metrics, so that the browser asks only for new ones."""
    listed = [{"id": run.id, "label": run.name, "stored": f"{run.attempt}.{run.event_offset}"} for run in runs]
    return json.dumps(listed) if listed else ""
