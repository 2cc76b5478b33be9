"""The plots of several runs (static/compare-plots.js)."""

import json
from collections.abc import Sequence

from app.format.runs import names
from app.web.assets import plotly_url
from app.web.templating import TEMPLATES
from worker.store.tables import Run


def plotted(runs: Sequence[Run]) -> str:
    """The runs as JSON; `stored` changes with a run's metrics, so that the browser asks only for new ones."""
    labels = names(runs)
    return json.dumps(
        [{"id": run.id, "label": labels[run.id], "stored": f"{run.attempt}.{run.event_offset}"} for run in runs]
    )


TEMPLATES.globals["plotly_url"] = plotly_url
