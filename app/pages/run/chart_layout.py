"""The parts of a Plotly figure without data: axes, legends, titles, marks of events. Plain JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

GAP, TOP, BOTTOM = 34, 26, 40  # pixels


@dataclass(frozen=True)
class Mark:
    """An event at a step; `kind` is checkpoint or resumed."""

    step: int
    kind: str
    text: str


def layout(height: int, revision: str) -> dict[str, Any]:
    """The layout without value axes: step axis, hover label, colors and margins."""
    return {
        "height": height,
        "uirevision": revision,
        "margin": {"l": 58, "r": 14, "t": TOP, "b": BOTTOM},
        "paper_bgcolor": "var(--surface)",
        "plot_bgcolor": "var(--surface)",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "var(--muted)"},
        "hovermode": "x unified",
        "hoversubplots": "axis",
        "hoverlabel": {
            "bgcolor": "var(--raised)",
            "bordercolor": "var(--line-strong)",
            "font": {"color": "var(--text)", "size": 12},
        },
        "dragmode": "zoom",
        "annotations": [],
        "xaxis": {
            "title": {"text": "step", "standoff": 6},
            "gridcolor": "var(--grid)",
            "linecolor": "var(--line-strong)",
            "zeroline": False,
            "showspikes": True,
            "spikemode": "across",
            "spikesnap": "cursor",
            "spikethickness": 1,
            "spikedash": "solid",
            "spikecolor": "var(--faint)",
            "hoverformat": ",d",
            "rangemode": "tozero",
        },
    }


def value_axis(bottom: float, top: float, *, from_zero: bool, logarithmic: bool) -> dict[str, Any]:
    """The value axis of a panel between `bottom` and `top`, as shares of the figure's height."""
    return {
        "domain": [max(bottom, 0.0), min(top, 1.0)],
        "type": "log" if logarithmic else "linear",
        "gridcolor": "var(--grid)",
        "zeroline": False,
        "nticks": 5,
        "exponentformat": "power",
        "tickformat": "~g",
        "rangemode": "tozero" if from_zero else "normal",
    }


def legend(top: float) -> dict[str, Any]:
    """A panel's legend, right-aligned on the line of its title."""
    return {
        "orientation": "h",
        "x": 1,
        "xanchor": "right",
        "y": top,
        "yanchor": "bottom",
        "bgcolor": "rgba(0,0,0,0)",
        "font": {"size": 11},
        "itemwidth": 30,
    }


def title(text: str, top: float) -> dict[str, Any]:
    """A panel's title, above its left edge."""
    place = {"xref": "paper", "x": 0, "xanchor": "left", "yref": "paper", "y": top, "yanchor": "bottom"}
    return {"text": text, "showarrow": False, "font": {"size": 12, "color": "var(--text)"}, **place}


def mark_line(mark: Mark) -> dict[str, Any]:
    """A vertical line through all panels."""
    amber = {"color": "var(--amber)", "width": 1.5, "dash": "solid"}
    pale = {"color": "var(--line-strong)", "width": 1, "dash": "dot"}
    place = {"x0": mark.step, "x1": mark.step, "yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    return {"type": "line", **place, "line": amber if mark.kind == "resumed" else pale}


def mark_points(marks: Sequence[Mark]) -> list[dict[str, Any]]:
    """Small triangles on the lower edge; the hover label names their events."""
    if not marks:
        return []
    colors = ["var(--amber)" if mark.kind == "resumed" else "var(--faint)" for mark in marks]
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [mark.step for mark in marks],
            "y": [0] * len(marks),
            "yaxis": "y99",
            "text": [mark.text for mark in marks],
            "hovertemplate": "%{text}<extra></extra>",
            "marker": {"symbol": "triangle-up", "size": 7, "color": colors},
            "showlegend": False,
            "cliponaxis": False,
        }
    ]


def suffix(number: int) -> str:
    """The suffix that Plotly gives to the axes and legend of panel `number` (from 1)."""
    return "" if number == 1 else str(number)
