"""The memory forecast as HTML: verdict, parts of the peak, settings that fit and the most that fits, each behind a button, time
and cost, and a simulated step as a chart. Pure.
"""

import json
from typing import Any

from markupsafe import Markup, escape

from app.format import forecast_text as words
from app.format import numbers
from app.format.forecast_text import PEAKS, QUESTIONS, memory_text, of_limit, speed_rows, value_text
from app.format.setting_text import all_in_words
from app.pages.common import form
from app.pages.common.html import each, looking_html, note_html
from app.texts import _, gettext_noop, language
from training.forecast.advice import Advice, Combination
from training.forecast.forecast import HOST_MOMENTS, Forecast
from training.forecast.gpus import GIB, Card
from training.forecast.solve import Solution, Wanted
from training.units import byte_size
from worker.forecasts.forecast import Estimate
from worker.forecasts.speed import Speed

WIDTH, HEIGHT = 560, 150
KINDS = (
    gettext_noop("weights"),
    gettext_noop("optimizer"),
    gettext_noop("gradients"),
    gettext_noop("buffers"),
    gettext_noop("activations"),
    gettext_noop("logits"),
    gettext_noop("other"),
)
"""From the bottom up: memory that lasts for the whole step lies below memory that is freed within it."""
_VERDICTS = {True: (gettext_noop("Fits"), "good"), False: (gettext_noop("Does not fit"), "bad"), None: ("", "")}


def verdict_html(estimate: Estimate, place: Card | None) -> Markup:
    """Whether it fits, at which moment of a step it takes the most, and why."""
    forecast = estimate.forecast
    memory = of_limit(forecast.peak_bytes, forecast.limit_bytes)
    peak = (_("{memory} per GPU") if place else _("{memory} per process")).format(memory=memory)
    style = "warn" if forecast.unknown or forecast.close else "good" if forecast.fits else "bad"
    lead = Markup('<p class="verdict"><b class="{}">{}</b>: {}. {}</p>').format(
        style, words.verdict(forecast), peak, _(PEAKS[forecast.moment])
    )
    close = [words.close_to_the_limit()] if forecast.close else []
    reasons = each('<p class="note">{}</p>', [(reason,) for reason in [*forecast.reasons, *close, *estimate.notes]])
    return lead + reasons


def parts_html(estimate: Estimate) -> Markup:
    """The parts of the peak as a bar with a mark at the limit, and in numbers."""
    forecast = estimate.forecast
    whole = max(forecast.peak_bytes, forecast.limit_bytes or 0, 1)
    bars = each(
        '<i class="part part-{}" style="width:{}%" title="{}: {}"></i>',
        [(name, f"{amount / whole * 100:.2f}", _(name), byte_size(amount)) for name, amount in forecast.parts.items()],
    )
    mark = f"{(forecast.limit_bytes or whole) / whole * 100:.2f}"
    bar = Markup('<div class="parts" role="img" aria-label="{}">{}<b style="left:{}%"></b></div>').format(
        _("Parts of the memory"), bars, mark
    )
    rows = each(
        '<div><dt><i class="part part-{}"></i>{}</dt><dd>{}</dd></div>',
        [(name, _capitalized(name), byte_size(amount)) for name, amount in forecast.parts.items()],
    )
    at_host = _("Host RAM {moment}").format(moment=_(HOST_MOMENTS[forecast.host_moment]))
    more = [(at_host, forecast.host_bytes, forecast.host_limit_bytes), ("NVMe", forecast.nvme_bytes, None)]
    rows += each(
        '<div class="whole"><dt>{}</dt><dd>{}</dd></div>',
        [(name, of_limit(size, limit)) for name, size, limit in more if size],
    )
    return bar + Markup('<dl class="legend">{}</dl>').format(rows)


def host_text(forecast: Forecast) -> str:
    """The host memory, and the moment that needs the most."""
    memory = byte_size(forecast.host_bytes)
    return _("Host RAM: {memory} {moment}.").format(memory=memory, moment=_(HOST_MOMENTS[forecast.host_moment]))


def cell_html(rung: Combination) -> Markup:
    """A combination of strategy and method as a cell of a table, with a button."""
    if rung.forecast is None:
        return Markup('<td class="muted" title="{}">-</td>').format(rung.refused)
    verdict = " ".join(rung.forecast.reasons or (_("Fits."), host_text(rung.forecast)))
    return Markup('<td class="{}"><button type="button" data-send="{}" title="{}">{}</button></td>').format(
        "good" if rung.forecast.fits else "bad",
        json.dumps({"changes": rung.changes}),
        verdict,
        f"{rung.forecast.peak_bytes / GIB:.1f}",
    )


def option_html(advice: Advice, changes: dict[str, Any]) -> Markup:
    """A configuration that fits, with a button; empty for the form's own."""
    if not changes:
        return Markup("")
    speed = _("{share} of the fastest speed.").format(share=f"{advice.relative_speed:.0%}")
    return Markup("<li>{}<span>{} · {} {}</span></li>").format(
        form.fix_button(changes), byte_size(advice.forecast.peak_bytes), speed, advice.cost
    )


def most_html(solutions: list[Solution], *, confirming: bool = False) -> Markup:
    """The answers, each with a button that applies it. `confirming`: simulated steps are on their way."""
    rows = Markup("").join(
        _solution(solution) for solution in solutions if solution.value is not None or solution.reason
    )
    note = looking_html(_("Confirming with simulated steps.")) if confirming else Markup("")
    return Markup('<ul class="ways most">{}</ul>{}').format(rows, note)


def _solution(solution: Solution) -> Markup:
    question = _(QUESTIONS[solution.wanted])
    if solution.value is None:
        return Markup("<li><b>{}: {}</b><span>{}</span></li>").format(question, _("none"), solution.reason)
    sent = {"card": solution.value} if solution.wanted is Wanted.GPU else {"changes": solution.changes}
    text = f"{question}: {value_text(solution)}"
    if not solution.changes and solution.wanted is not Wanted.GPU:
        return Markup("<li><b>{}</b><span>{}</span></li>").format(text, memory_text(solution))
    others = {name: value for name, value in solution.changes.items() if name != solution.wanted.value}
    more = [_("Also sets {settings}.").format(settings=all_in_words(others))] if others else []
    what = text if language() else f"{text[:1].lower()}{text[1:]}"  # a German noun keeps its capital
    return Markup('<li><button type="button" class="fix" data-send="{}">{}</button><span>{}</span></li>').format(
        json.dumps(sent), _("Set {settings}").format(settings=what), " ".join([memory_text(solution), *more])
    )


def speed_html(speed: Speed) -> Markup:
    """Time, energy and cost, and what they rest on."""
    rows = each("<div><dt>{}</dt><dd>{}</dd></div>", speed_rows(speed))
    notes = each('<p class="note">{}</p>', [(note,) for note in speed.notes])
    if not speed.tokens_per_second:
        return notes
    return Markup('<h3>{}</h3><dl class="legend speed">{}</dl>{}').format(_("Time and cost"), rows, notes)


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
    sentence = _("{memory} in the {phase} pass.")
    if overhead:
        sentence = _("{memory} in the {phase} pass, including {overhead} for the CUDA context and fragmentation.")
    lead = Markup('<p class="verdict"><b class="{}">{}</b> {}</p>').format(
        style, _(verdict), sentence.format(memory=total, phase=done["phase"], overhead=byte_size(overhead))
    )
    where = done["module"] or done["operator"]
    if done["line"]:
        at = _("{line} in {function}").format(line=done["line"], function=done["function"])
        where = Markup('<code>{}</code> <span class="muted">{}</span>').format(where, at)
    else:
        where = Markup("<code>{}</code>").format(where)
    place = note_html(escape(_("The peak is in {place}.")).format(place=where))
    return lead + place + _picture(done) + _parts_legend(done["parts"])


def _picture(done: dict[str, Any]) -> Markup:
    """Stacked areas, with a line where each pass begins."""
    points = done["timeline"]
    top = max(sum(point["bytes"].values()) for point in points) or 1
    across = WIDTH / max(len(points) - 1, 1)
    below, areas = [0.0] * len(points), []
    for kind in [*KINDS, *({kind for point in points for kind in point["bytes"]} - set(KINDS))]:
        above = [low + point["bytes"].get(kind, 0) for low, point in zip(below, points, strict=True)]
        if above != below:
            areas.append((kind, _outline(below, above, across, top), _(kind)))
        below = above
    marks = each('<line x1="{0}" x2="{0}" y1="0" y2="{1}"/><text x="{2}" y="11">{3}</text>', _phases(points, across))
    shapes = each('<polygon class="part part-{}" points="{}"><title>{}</title></polygon>', areas)
    return Markup('<svg class="timeline" viewBox="0 0 {} {}" role="img" aria-label="{}">{}{}</svg>').format(
        WIDTH, HEIGHT, _("Live memory over a step"), shapes, marks
    )


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


def _parts_legend(parts: dict[str, int]) -> Markup:
    rows = each(
        '<div><dt><i class="part part-{}"></i>{}</dt><dd>{}</dd></div>',
        [(name, _capitalized(name), byte_size(amount)) for name, amount in parts.items() if amount],
    )
    return Markup('<dl class="legend">{}</dl>').format(rows)


def _capitalized(part: str) -> str:
    return numbers.capitalized(_(part))
