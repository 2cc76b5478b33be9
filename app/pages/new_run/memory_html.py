"""The memory forecast as HTML: verdict, parts of the peak, and settings that fit, each behind a button. Pure."""

import json
from typing import Any

from markupsafe import Markup

from app.pages.common import form
from app.pages.common.html import each
from app.words import forecast as words
from training.forecast.advice import Advice
from training.forecast.formula.moments import MOMENTS
from training.forecast.gpus import GIB, Card
from training.forecast.strategy_table import Combination
from training.units import byte_size
from worker.forecasts.forecast import Found


def verdict_html(found: Found, place: Card | None) -> Markup:
    """Whether it fits, at which moment of a step it takes the most, and why."""
    forecast = found.forecast
    peak = f"{byte_size(forecast.peak_bytes)} on each {'GPU' if place else 'process'}"
    limit = f" of {byte_size(forecast.limit_bytes)}" if forecast.limit_bytes else ""
    style = "warn" if forecast.unknown or forecast.close else "good" if forecast.fits else "bad"
    lead = Markup('<p class="verdict"><b class="{}">{}</b> {}{}, at {}.</p>').format(
        style, words.verdict(forecast), peak, limit, MOMENTS[forecast.moment]
    )
    close = [words.CLOSE] if forecast.close else []
    reasons = each('<p class="note">{}</p>', [(reason,) for reason in [*forecast.reasons, *close, *found.notes]])
    return lead + reasons


def parts_html(found: Found) -> Markup:
    """The parts of the peak as a bar with a mark at the limit, and in numbers."""
    forecast = found.forecast
    whole = max(forecast.peak_bytes, forecast.limit_bytes or 0, 1)
    bars = each(
        '<i class="part part-{}" style="width:{}%" title="{}: {}"></i>',
        [(name, f"{amount / whole * 100:.2f}", name, byte_size(amount)) for name, amount in forecast.parts.items()],
    )
    mark = f"{(forecast.limit_bytes or whole) / whole * 100:.2f}"
    bar = Markup(
        '<div class="parts" role="img" aria-label="Parts of the memory">{}<b style="left:{}%"></b></div>'
    ).format(bars, mark)
    rows = each(
        '<div><dt><i class="part part-{}"></i>{}</dt><dd>{}</dd></div>',
        [(name, name.capitalize(), byte_size(amount)) for name, amount in forecast.parts.items()],
    )
    more = [("Host RAM", forecast.host_bytes, forecast.host_limit_bytes), ("NVMe", forecast.nvme_bytes, None)]
    rows += each(
        "<div><dt>{}</dt><dd>{}{}</dd></div>",
        [(name, byte_size(size), f" of {byte_size(limit)}" if limit else "") for name, size, limit in more if size],
    )
    return bar + Markup('<dl class="legend">{}</dl>').format(rows)


def cell_html(rung: Combination) -> Markup:
    """A combination of strategy and method as a cell of a table, with a button."""
    if rung.forecast is None:
        return Markup('<td class="muted" title="{}">-</td>').format(rung.refused)
    verdict = " ".join(rung.forecast.reasons) or f"Fits. Host RAM: {byte_size(rung.forecast.host_bytes)}."
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
    settings_text = ", ".join(form.in_words(name, value) for name, value in changes.items())
    cost = f"{byte_size(advice.forecast.peak_bytes)} · {advice.relative_speed:.0%} of the fastest speed. {advice.cost}"
    return Markup('<li><button type="button" class="fix" data-send="{}">Set {}</button><span>{}</span></li>').format(
        json.dumps({"changes": changes}), settings_text, cost
    )
