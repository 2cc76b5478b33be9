"""The plots of several runs (static/compare-plots.js), and what the caller chose for all plots."""

import json
from collections.abc import Iterable, Sequence
from itertools import product
from zlib import crc32

from app.access import callers, notify
from app.format.run_text import short_names
from app.web.assets import plotly_url
from app.web.templating import TEMPLATES
from worker.store.tables import Run

_COLORS, _DASHES = 10, 5  # of static/compare.css


def strokes(run_ids: Iterable[str]) -> dict[str, tuple[int, int]]:
    """The color and the dash pattern of each run's line, chosen by its id, so that they are the same on every page.

    Of runs that would look alike, those with later ids take the next color that is free.
    """
    chosen: dict[str, tuple[int, int]] = {}
    for run_id in sorted(set(run_ids)):
        first, free = crc32(run_id.encode()), set(product(range(_COLORS), range(_DASHES))) - set(chosen.values())
        chosen[run_id] = min(free, key=lambda stroke: (stroke[1], (stroke[0] - first) % _COLORS), default=(0, 0))
    return chosen


def plotted(runs: Sequence[Run]) -> str:
    """The runs as JSON; `stored` changes with a run's metrics, so that the browser asks only for new ones."""
    labels, styles = short_names(runs), strokes(run.id for run in runs)
    return json.dumps(
        [
            {
                "id": run.id,
                "label": labels[run.id],
                "stored": f"{run.attempt}.{run.event_offset}",
                "color": f"--run-{styles[run.id][0] + 1}",
                "dash": styles[run.id][1],
            }
            for run in runs
        ]
    )


def plot_options() -> str:
    """What the caller chose for plots, as JSON; empty for the user who runs the server, whose browsers keep it."""
    return "" if callers.current().is_local else json.dumps(notify.current_preferences().plots or {})


TEMPLATES.globals |= {"plotly_url": plotly_url, "plot_options": plot_options}
