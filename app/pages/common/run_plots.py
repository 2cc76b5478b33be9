"""The plots of several runs (static/compare-plots.js), and what the caller chose for all plots."""

import json
from collections.abc import Iterable, Sequence
from itertools import product
from zlib import crc32

from app.access import callers, users
from app.format.run_text import short_names
from app.web.assets import plotly_url
from app.web.templating import TEMPLATES
from worker.store.tables import Run

_COLORS, _DASHES = 10, 5  # --run-1 and after in static/lathe.css, and those of static/compare.css


def strokes(run_ids: Iterable[str]) -> dict[str, tuple[int, int]]:
    """The color and the dash pattern of each run's line: those of its id, so that they are the same on every page.

    Of runs that would look alike, all but the one with the earliest id take, on this page only, the next color that is free.
    """
    ids = sorted(set(run_ids))
    owners = {(color_of(run_id), 0): run_id for run_id in reversed(ids)}
    chosen = {run_id: stroke for stroke, run_id in owners.items()}
    for run_id in ids:
        first, free = color_of(run_id), set(product(range(_COLORS), range(_DASHES))) - set(chosen.values())
        if run_id not in chosen:
            chosen[run_id] = min(free, key=lambda stroke: (stroke[1], (stroke[0] - first) % _COLORS), default=(0, 0))
    return chosen


def color_of(run_id: str) -> int:
    """The number, from 0, of the color that a run has on every page."""
    return crc32(run_id.encode()) % _COLORS


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
    return "" if callers.current().is_local else json.dumps(users.own_preferences().plots or {})


TEMPLATES.globals |= {"color_of": color_of, "plotly_url": plotly_url, "plot_options": plot_options}
