"""Whether the run fits, beside the form of New run: forecast at every change, with what else would fit at one click."""

import json
from dataclasses import dataclass
from typing import Any

import gradio as gr
from markupsafe import Markup

from app import form, text
from app.cache import TimedCache
from app.pages import review
from app.pages.dataset_data import local_model
from app.pages.parts import QUIET, each, html, table
from training import cards
from training.advice import Advice
from training.cards import Card
from training.config import RunConfig
from training.fields import settings
from training.memory import MOMENTS
from training.model_shape import ModelShape, ShapeError
from worker import forecasting
from worker.forecasting import Found, Rung

HERE = "here"
_COUNTS = ("1", "2", "4", "8")
_shapes: TimedCache[str, ModelShape | ShapeError] = TimedCache(seconds=30)


@dataclass(frozen=True)
class MemoryPanel:
    """The card that is asked about, how many of them, and the answer."""

    card: gr.Dropdown
    count: gr.Radio
    answer: gr.HTML


def build() -> MemoryPanel:
    """The components, asking about this machine."""
    here = forecasting.card_of(review.machine())
    own = f"This machine ({here.label})" if here else "This machine (CPU)"
    with gr.Column(elem_classes="card memory-card"):
        html(Markup("<header><h2>Memory</h2></header>"))
        with gr.Row(elem_classes="settings"):
            choices = [(own, HERE), *((card.label, name) for name, card in cards.CARDS.items())]
            card = gr.Dropdown(choices, value=HERE, label="GPU", elem_id="memory-gpu", elem_classes="setting pick")
            count = gr.Radio(
                [("as processes", ""), *((one, one) for one in _COUNTS)],
                value="",
                label="GPUs",
                elem_id="memory-gpus",
                elem_classes="setting buttons",
            )
        answer = html(script="lathe.sendClicks(element, trigger)", classes="memory")
    return MemoryPanel(card, count, answer)


def wire(panel: MemoryPanel, inputs: list[Any], names: tuple[str, ...]) -> None:
    """The answer follows every setting, and the card."""

    def answered(card: str, count: str, *typed: Any) -> Markup:
        return memory_html(dict(zip(names, typed, strict=True)), card, count)

    given = [panel.card, panel.count, *inputs]
    gr.on([one.change for one in given], answered, given, panel.answer, trigger_mode="always_last", **QUIET)


def memory_html(values: form.Values, card: str, count: str) -> Markup:
    """What the form's run takes on such GPUs, or what is missing to say it."""
    if not values.get("model"):
        return _note("Choose a model, and this says what the run takes before it is queued.")
    config = form.check({**values, "data": values.get("data") or "none"})
    if isinstance(config, list):
        return _note("The settings must be right first.")
    model = config.model
    shape = _shapes.get(model, lambda: _shape(model))
    if isinstance(shape, ShapeError):
        return _note(f"{shape.message} {shape.fix}")
    asked = config
    if count:
        config = forecasting.spread(config, int(count))
    place = forecasting.card_of(review.machine()) if card == HERE else cards.CARDS[card]
    host = forecasting.host_memory() if card == HERE else None
    found = forecasting.foresee(
        config, shape, place, host_bytes=host, rows=forecasting.counted(config, local_model(model))
    )
    ways = _advice(found, _differing(asked, config))
    return _verdict(found, place) + _parts(found) + ways + _ladder(config, shape, place, found, host)


def _shape(model: str) -> ModelShape | ShapeError:
    try:
        return forecasting.shape_at(local_model(model))
    except ShapeError as error:
        return error


def _verdict(found: Found, place: Card | None) -> Markup:
    one = found.forecast
    what = f"{text.byte_size(one.peak_bytes)} on each {'GPU' if place else 'process'}"
    limit = f" of {text.byte_size(one.limit_bytes)}" if one.limit_bytes else ""
    word, kind = ("Fits", "good") if one.fits else ("Does not fit", "bad")
    lead = Markup('<p class="verdict"><b class="{}">{}</b> {}{}, at {}.</p>').format(
        kind, word, what, limit, MOMENTS[one.moment]
    )
    reasons = each('<p class="note">{}</p>', [(reason,) for reason in [*one.reasons, *found.notes]])
    return lead + reasons


def _parts(found: Found) -> Markup:
    """The parts as one bar over the limit, and in numbers."""
    one = found.forecast
    whole = max(one.peak_bytes, one.limit_bytes or 0, 1)
    bars = each(
        '<i class="part part-{}" style="width:{}%" title="{}: {}"></i>',
        [(name, f"{amount / whole * 100:.2f}", name, text.byte_size(amount)) for name, amount in one.parts.items()],
    )
    mark = f"{(one.limit_bytes or whole) / whole * 100:.2f}"
    bar = Markup(
        '<div class="parts" role="img" aria-label="Parts of the memory">{}<b style="left:{}%"></b></div>'
    ).format(bars, mark)
    rows = each(
        '<div><dt><i class="part part-{}"></i>{}</dt><dd>{}</dd></div>',
        [(name, name.capitalize(), text.byte_size(amount)) for name, amount in one.parts.items()],
    )
    more = [("Host memory", one.host_bytes, one.host_limit_bytes), ("NVMe", one.nvme_bytes, None)]
    rows += each(
        "<div><dt>{}</dt><dd>{}{}</dd></div>",
        [
            (name, text.byte_size(size), f" of {text.byte_size(limit)}" if limit else "")
            for name, size, limit in more
            if size
        ],
    )
    return bar + Markup('<dl class="legend">{}</dl>').format(rows)


def _differing(asked: RunConfig, spread: RunConfig) -> dict[str, Any]:
    """What the form must be changed to besides, where another number of GPUs is asked about."""
    names = ("num_processes", "strategy")
    return {name: getattr(spread, name) for name in names if getattr(spread, name) != getattr(asked, name)}


def _advice(found: Found, besides: dict[str, Any]) -> Markup:
    """What fits, the fastest first, each with a button; the settings as they are have none."""
    if found.forecast.limit_bytes is None:
        return Markup("")
    if not found.advice:
        return _note("Nothing that was tried fits: take more or larger GPUs, a shorter maximum length or a smaller model.")
    items = Markup("").join(_way(one, besides | one.changes) for one in found.advice)
    heading = "What fits, the fastest first" if not found.forecast.fits else "Also fits"
    return Markup('<h3>{}</h3><ul class="ways">{}</ul>').format(heading, items) if items else Markup("")


def _way(one: Advice, changes: dict[str, Any]) -> Markup:
    if not changes:
        return Markup("")
    words = ", ".join(f"{form.label(name)} {form.shown(settings()[name], value)}" for name, value in changes.items())
    told = f"{text.byte_size(one.forecast.peak_bytes)} · {one.relative_speed:.0%} of the fastest speed. {one.cost}"
    return Markup('<li><button type="button" class="fix" data-send="{}">Set {}</button><span>{}</span></li>').format(
        json.dumps({"changes": changes}), words, told
    )


def _ladder(config: RunConfig, shape: ModelShape, place: Card | None, found: Found, host: int | None) -> Markup:
    """Every strategy with every method: what each takes, green where it fits."""
    if place is None:
        return Markup("")
    rungs = forecasting.ladder(config, shape, place, batch=found.forecast.batch, host_bytes=host)
    methods = list(dict.fromkeys(one.method for one in rungs))
    strategies = list(dict.fromkeys(one.strategy for one in rungs))
    known = {(one.strategy, one.method): one for one in rungs}
    heads = each("<th>{}</th>", [("GiB on each GPU",), *((name,) for name in methods)])
    rows = Markup("").join(
        Markup("<tr><th>{}</th>{}</tr>").format(name, Markup("").join(_cell(known[name, method]) for method in methods))
        for name in strategies
    )
    return Markup("<details open><summary>Every strategy and method</summary>{}</details>").format(
        table("figures ladder", heads, rows)
    )


def _cell(one: Rung) -> Markup:
    if one.forecast is None:
        return Markup('<td class="muted" title="{}">-</td>').format(one.refused)
    fits = one.forecast.fits
    told = " ".join(one.forecast.reasons) or f"Fits. Host memory: {text.byte_size(one.forecast.host_bytes)}."
    return Markup('<td class="{}"><button type="button" data-send="{}" title="{}">{}</button></td>').format(
        "good" if fits else "bad",
        json.dumps({"changes": one.changes}),
        told,
        f"{one.forecast.peak_bytes / cards.GIB:.1f}",
    )


def _note(words: str) -> Markup:
    return Markup('<p class="note">{}</p>').format(words)
