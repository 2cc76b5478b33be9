"""A simulated step as a chart: live memory by kind over the step, and its peak."""

from typing import Any

from markupsafe import Markup

from app.pages.common.html import each
from training.units import byte_size

WIDTH, HEIGHT = 560, 150
KINDS = ("weights", "optimizer", "gradients", "buffers", "activations", "logits", "other")
"""From the bottom up: memory that lasts for the whole step lies below memory that is freed within it."""

_VERDICTS = {True: ("Fits", "good"), False: ("Does not fit", "bad"), None: ("", "")}


def simulation_html(done: dict[str, Any]) -> Markup:
    """The peak in words, the chart, and the parts of the peak."""
    if "problem" in done:
        problem = done["problem"]
        return Markup('<p class="alert" role="alert">{} <em>{}</em></p>').format(
            problem["message"].capitalize(), problem["fix"]
        )
    overhead = done.get("besides_bytes", 0)
    verdict, style = _VERDICTS[done.get("fits")]
    total = byte_size(done["peak_bytes"] + overhead)
    overhead_part = f", including {byte_size(overhead)} for the CUDA context and fragmentation" if overhead else ""
    lead = Markup('<p class="verdict"><b class="{}">{}</b> {} in the {} pass{}.</p>').format(
        style, verdict, total, done["phase"], overhead_part
    )
    where = done["module"] or done["operator"]
    line = Markup(' <span class="muted">{} in {}</span>').format(done["line"], done["function"]) if done["line"] else ""
    place = Markup('<p class="note">The peak is in <code>{}</code>{}.</p>').format(where, line)
    return lead + place + _picture(done) + _legend(done["parts"])


def _picture(done: dict[str, Any]) -> Markup:
    """Stacked areas, with a line where each pass begins."""
    points = done["timeline"]
    top = max(sum(point["bytes"].values()) for point in points) or 1
    across = WIDTH / max(len(points) - 1, 1)
    below, areas = [0.0] * len(points), []
    for kind in [*KINDS, *({kind for point in points for kind in point["bytes"]} - set(KINDS))]:
        above = [low + point["bytes"].get(kind, 0) for low, point in zip(below, points, strict=True)]
        if above != below:
            areas.append((kind, _outline(below, above, across, top), kind))
        below = above
    marks = each('<line x1="{0}" x2="{0}" y1="0" y2="{1}"/><text x="{2}" y="11">{3}</text>', _phases(points, across))
    shapes = each('<polygon class="part part-{}" points="{}"><title>{}</title></polygon>', areas)
    return Markup(
        '<svg class="timeline" viewBox="0 0 {} {}" role="img" aria-label="Live memory over a step">{}{}</svg>'
    ).format(WIDTH, HEIGHT, shapes, marks)


def _phases(points: list[dict[str, Any]], across: float) -> list[tuple[str, int, str, str]]:
    """The position and name of each pass; a pass too short for its name has none."""
    begins = [number for number, point in enumerate(points) if number and point["phase"] != points[number - 1]["phase"]]
    ends = [*begins[1:], len(points)]
    return [
        (
            f"{number * across:.1f}",
            HEIGHT,
            f"{number * across + 3:.1f}",
            points[number]["phase"] * ((end - number) * across > 50),
        )
        for number, end in zip(begins, ends, strict=True)
    ]


def _outline(below: list[float], above: list[float], across: float, top: float) -> str:
    """The corners of an area, along its upper edge and back along its lower one."""
    corners = [*enumerate(above), *reversed(list(enumerate(below)))]
    return " ".join(f"{number * across:.1f},{HEIGHT * (1 - value / top):.1f}" for number, value in corners)


def _legend(parts: dict[str, int]) -> Markup:
    rows = each(
        '<div><dt><i class="part part-{}"></i>{}</dt><dd>{}</dd></div>',
        [(name, name.capitalize(), byte_size(amount)) for name, amount in parts.items() if amount],
    )
    return Markup('<dl class="legend">{}</dl>').format(rows)
