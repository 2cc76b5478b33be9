"""The charts of a run as one Plotly figure in plain JSON. Pure: series in, figure out.

All panels share one step axis, and so zoom and cursor. Colors are named `var(--...)`: static/charts.js replaces them with the
style sheet's values, which follow the system's color scheme.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from markupsafe import escape

from app.pages.run import chart_layout
from app.pages.run.chart_layout import BOTTOM, GAP, TOP, Mark, suffix
from training.run_folder.events import LOSS_OF

GIB = 1024**3
_RANK_SHAPES = (
    ("solid", "solid"),
    ("dot", "dotted"),
    ("dash", "dashed"),
    ("dashdot", "dash-dotted"),
)  # in Plotly, in titles


class Line(Protocol):
    """A metric of one rank by step; `low` and `high` bound the aggregated points, None where none are aggregated."""

    name: str
    rank: int
    step: list[int]
    value: list[float | None]
    low: list[float | None] | None
    high: list[float | None] | None


@dataclass(frozen=True)
class Trace:
    """How one metric is drawn."""

    metric: str
    label: str
    color: str
    unit: str = ""
    scale: float = 1.0
    markers: bool = False
    smooth: bool = False


@dataclass(frozen=True)
class Panel:
    """Metrics that share a value axis; `height` in pixels. A panel without reported metrics is left out."""

    title: str
    height: int
    traces: tuple[Trace, ...]
    logarithmic: bool = False
    from_zero: bool = False


PANELS = (
    Panel(
        "Loss",
        230,
        (
            Trace("loss", "training loss", "--chart-1", smooth=True),
            Trace("eval_loss", "evaluation loss", "--chart-2", markers=True),
        ),
        logarithmic=True,
    ),
    Panel(
        "Accuracy",
        110,
        (
            Trace("accuracy", "training accuracy", "--chart-1", smooth=True),
            Trace("eval_accuracy", "evaluation accuracy", "--chart-2", markers=True),
        ),
        from_zero=True,
    ),
    Panel(
        "Reward margin (chosen - rejected)",
        110,
        (
            Trace("margin", "training margin", "--chart-1", smooth=True),
            Trace("eval_margin", "evaluation margin", "--chart-2", markers=True),
        ),
    ),
    Panel("Learning rate", 90, (Trace("learning_rate", "learning rate", "--chart-3"),)),
    Panel("Gradient norm", 90, (Trace("grad_norm", "gradient norm", "--chart-4", smooth=True),)),
    Panel("Speed, tokens/s", 90, (Trace("tokens_per_second", "speed", "--chart-5", " tokens/s", smooth=True),)),
    Panel(
        "Memory, GiB",
        190,
        (
            Trace("memory_allocated", "allocated", "--chart-1", " GiB", 1 / GIB),
            Trace("memory_reserved", "reserved", "--chart-3", " GiB", 1 / GIB),
            Trace("memory_peak", "peak", "--chart-2", " GiB", 1 / GIB),
            Trace("host_rss", "host", "--chart-5", " GiB", 1 / GIB),
        ),
        from_zero=True,
    ),
)

METRICS = tuple(trace.metric for panel in PANELS for trace in panel.traces)
_SET_PANELS = ((LOSS_OF, "Training loss of each data set"), (f"eval_{LOSS_OF}", "Evaluation loss of each data set"))
_COLORS = tuple(f"--chart-{number}" for number in range(1, 6))


def is_set_loss(name: str) -> bool:
    """True for the losses of one of several data sets."""
    return name.startswith(tuple(prefix for prefix, _ in _SET_PANELS))


def is_drawn(name: str) -> bool:
    """True for metrics that the charts show."""
    return name in METRICS or is_set_loss(name)


def figure(
    series: Sequence[Line],
    marks: Sequence[Mark] = (),
    *,
    revision: str = "",
    log_loss: bool = False,
    smoothing: float = 0.0,
) -> dict[str, Any] | None:
    """The panels that have points, stacked on one step axis; None if there are no points.

    `revision` is the run's id: Plotly keeps the zoom while it is unchanged. `smoothing` (0 to below 1) is the weight of the
    past in an exponential moving average, drawn over the pale raw line.
    """
    by_metric = _by_metric(series)
    loss, *others = PANELS
    possible = (loss, *_set_panels(by_metric), *others)
    panels = [panel for panel in possible if any(trace.metric in by_metric for trace in panel.traces)]
    if not panels:
        return None
    height = TOP + sum(panel.height for panel in panels) + GAP * (len(panels) - 1) + BOTTOM
    plot_height = height - TOP - BOTTOM
    data: list[dict[str, Any]] = []
    layout = chart_layout.layout(height, revision)
    offset = 0
    for number, panel in enumerate(panels, start=1):
        top, bottom = 1 - offset / plot_height, 1 - (offset + panel.height) / plot_height
        logarithmic = panel.logarithmic and log_loss
        axis = chart_layout.value_axis(bottom, top, from_zero=panel.from_zero, logarithmic=logarithmic)
        layout[f"yaxis{suffix(number)}"] = axis
        layout[f"legend{suffix(number)}"] = chart_layout.legend(top + 4 / plot_height)
        layout["annotations"].append(chart_layout.title(_title(panel, by_metric), top + 6 / plot_height))
        data += _panel_traces(panel, by_metric, number, smoothing)
        offset += panel.height + GAP
    layout["xaxis"]["anchor"] = f"y{suffix(len(panels))}"
    layout["shapes"] = [chart_layout.mark_line(mark) for mark in marks]
    layout["yaxis99"] = {"domain": [0, 8 / plot_height], "range": [0, 1], "visible": False, "fixedrange": True}
    data += chart_layout.mark_points(marks)
    return {"data": data, "layout": layout}


def smoothed(values: Sequence[float | None], weight: float) -> list[float | None]:
    """The exponential moving average of the values, bias-corrected; gaps stay gaps."""
    mean, total_weight = 0.0, 0.0
    result: list[float | None] = []
    for value in values:
        if value is None or not math.isfinite(value):
            result.append(None)
            continue
        mean = weight * mean + (1 - weight) * value
        total_weight = weight * total_weight + (1 - weight)
        result.append(mean / total_weight)
    return result


def rounded(values: Iterable[float | None], scale: float = 1.0) -> list[float | None]:
    """The values with five significant digits: finer than a pixel, and half the bytes."""
    return [None if value is None or not math.isfinite(value) else float(f"{value * scale:.5g}") for value in values]


def _by_metric(series: Sequence[Line]) -> dict[str, list[Line]]:
    by_metric: dict[str, list[Line]] = {}
    for line in sorted(series, key=lambda line: line.rank):
        if is_drawn(line.name) and line.step:
            by_metric.setdefault(line.name, []).append(line)
    return by_metric


def _set_panels(by_metric: dict[str, list[Line]]) -> list[Panel]:
    """The losses of several data sets; a set has the same color in both panels."""
    names = sorted({name.partition(LOSS_OF)[2] for name in by_metric if is_set_loss(name)})
    colors = {name: _COLORS[number % len(_COLORS)] for number, name in enumerate(names)}
    return [
        Panel(
            title,
            150,
            tuple(
                Trace(f"{prefix}{name}", str(escape(name)), color, markers=prefix != LOSS_OF, smooth=prefix == LOSS_OF)
                for name, color in colors.items()
            ),
            logarithmic=True,
        )
        for prefix, title in _SET_PANELS
    ]


def _panel_traces(
    panel: Panel, by_metric: dict[str, list[Line]], number: int, smoothing: float
) -> list[dict[str, Any]]:
    traces: list[dict[str, Any]] = []
    for trace in panel.traces:
        lines = by_metric.get(trace.metric, [])
        for line in lines:
            traces += _line_traces(trace, line, number, smoothing, ranked=len(lines) > 1)
    if len(panel.traces) == 1:  # the title names it
        traces = [{**trace, "showlegend": False} for trace in traces]
    return traces


def _line_traces(trace: Trace, line: Line, number: int, smoothing: float, *, ranked: bool) -> list[dict[str, Any]]:
    label = f"{trace.label}, rank {line.rank}" if ranked else trace.label
    axis = {
        "x": line.step,
        "yaxis": f"y{suffix(number)}",
        "legend": f"legend{suffix(number)}",
        "legendgroup": trace.metric,
    }
    shape = _RANK_SHAPES[line.rank % len(_RANK_SHAPES)][0] if ranked else "solid"
    drawn = {
        **axis,
        "type": "scatter",
        "name": trace.label,
        "showlegend": line.rank <= 0 or not ranked,  # one entry shows and hides all ranks
        "y": rounded(line.value, trace.scale),
        "mode": "lines+markers" if trace.markers or len(line.step) == 1 else "lines",
        "marker": {"size": 5},
        "line": {"color": f"var({trace.color})", "width": 1.6, "dash": shape},
        "hovertemplate": f"{label}: %{{y:.5~g}}{trace.unit}<extra></extra>",
    }
    band = _band(trace, line, axis)
    if not (trace.smooth and smoothing):
        return [*band, drawn]
    pale = {**drawn, "opacity": 0.3, "showlegend": False, "hoverinfo": "skip", "hovertemplate": None}
    return [*band, pale, {**drawn, "y": rounded(smoothed(line.value, smoothing), trace.scale)}]


def _band(trace: Trace, line: Line, axis: dict[str, Any]) -> list[dict[str, Any]]:
    """The band between the lowest and highest value of each point, where a point aggregates several steps."""
    if line.low is None or line.high is None or line.low == line.high:
        return []
    edge = {**axis, "type": "scatter", "mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}
    fill = {"fill": "tonexty", "fillcolor": f"var({trace.color}-soft)"}
    return [{**edge, "y": rounded(line.low, trace.scale)}, {**edge, **fill, "y": rounded(line.high, trace.scale)}]


def _title(panel: Panel, by_metric: dict[str, list[Line]]) -> str:
    """The panel's title, with the line style of each rank."""
    ranks = sorted({line.rank for trace in panel.traces for line in by_metric.get(trace.metric, [])})
    if len(ranks) < 2:
        return f"<b>{panel.title}</b>"
    shapes = ", ".join(
        f"rank {rank} {_RANK_SHAPES[rank % len(_RANK_SHAPES)][1]}" for rank in ranks[: len(_RANK_SHAPES)]
    )
    return f"<b>{panel.title}</b>  ({shapes}{', ...' if len(ranks) > len(_RANK_SHAPES) else ''})"
