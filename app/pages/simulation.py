"""A simulated step as a picture: live memory by kind over the step, and where its peak is."""

from typing import Any

from markupsafe import Markup

from app import text
from app.pages.parts import each

WIDTH, HEIGHT = 560, 150
KINDS = ("weights", "optimizer", "gradients", "buffers", "activations", "logits", "other")
"""From the bottom up: what lives through the step lies below what comes and goes."""


_VERDICTS = {True: ("Fits", "good"), False: ("Does not fit", "bad"), None: ("", "")}


def simulation_html(done: dict[str, Any]) -> Markup:
    """The picture, the peak in words, and its parts."""
    if "problem" in done:
        problem = done["problem"]
        return Markup('<p class="alert" role="alert">{} <em>{}</em></p>').format(
            problem["message"].capitalize(), problem["fix"]
        )
    besides = done.get("besides_bytes", 0)
    word, kind = _VERDICTS[done.get("fits")]
    total = text.byte_size(done["peak_bytes"] + besides)
    beside = f", {text.byte_size(besides)} of it context and slack" if besides else ""
    lead = Markup('<p class="verdict"><b class="{}">{}</b> {} in the {} pass{}.</p>').format(
        kind, word, total, done["phase"], beside
    )
    where = done["module"] or done["operator"]
    line = Markup(' <span class="muted">{} in {}</span>').format(done["line"], done["function"]) if done["line"] else ""
    place = Markup('<p class="note">The peak is in <code>{}</code>{}.</p>').format(where, line)
    return lead + place + _picture(done) + _legend(done["parts"])


def _picture(done: dict[str, Any]) -> Markup:
    """Areas laid on one another, with a line where each pass begins."""
    points = done["timeline"]
    top = max(sum(point["bytes"].values()) for point in points) or 1
    across = WIDTH / max(len(points) - 1, 1)
    below, areas = [0.0] * len(points), []
    for kind in [*KINDS, *({one for point in points for one in point["bytes"]} - set(KINDS))]:
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
    """Where each pass begins; one that is over before there is room for its name has none."""
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
    there = [(number, value) for number, value in enumerate(above)]
    back = [(number, value) for number, value in reversed(list(enumerate(below)))]
    return " ".join(f"{number * across:.1f},{HEIGHT * (1 - value / top):.1f}" for number, value in [*there, *back])


def _legend(parts: dict[str, int]) -> Markup:
    rows = each(
        '<div><dt><i class="part part-{}"></i>{}</dt><dd>{}</dd></div>',
        [(name, name.capitalize(), text.byte_size(amount)) for name, amount in parts.items() if amount],
    )
    return Markup('<dl class="legend">{}</dl>').format(rows)
