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
from app.pages.simulation import simulation_html
from training import cards
from training.advice import Advice
from training.cards import Card
from training.config import RunConfig
from training.fields import settings
from training.memory import MOMENTS
from training.model_shape import ModelShape, ShapeError
from worker import calibration, forecasting, worst_batch
from worker.forecasting import Found
from worker.ladder import Rung, ladder

HERE = "here"
_COUNTS = ("1", "2", "4", "8")
_SIMULATING = Markup('<p class="note looking">Simulating a step, which takes up to a minute for a large model.</p>')
_steps: TimedCache[str, dict[str, Any]] = TimedCache(seconds=600, size=16)
_shapes: TimedCache[str, ModelShape | ShapeError] = TimedCache(seconds=30)


@dataclass(frozen=True)
class MemoryPanel:
    """The card that is asked about, how many of them, the answer, and a simulated step."""

    card: gr.Dropdown
    count: gr.Radio
    answer: gr.HTML
    simulate: gr.Button
    step: gr.HTML


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
        simulate = gr.Button("Simulate a step", size="sm", elem_id="simulate")
        step = html(classes="memory")
    return MemoryPanel(card, count, answer, simulate, step)


def wire(panel: MemoryPanel, inputs: list[Any], names: tuple[str, ...]) -> None:
    """The answer follows every setting, and the card."""

    def answered(card: str, count: str, *typed: Any) -> Markup:
        return memory_html(dict(zip(names, typed, strict=True)), card, count)

    def simulated(card: str, count: str, *typed: Any) -> Markup:
        return step_html(dict(zip(names, typed, strict=True)), card, count)

    given = [panel.card, panel.count, *inputs]
    gr.on([one.change for one in given], answered, given, panel.answer, trigger_mode="always_last", **QUIET)
    panel.simulate.click(lambda: _SIMULATING, None, panel.step, **QUIET).then(simulated, given, panel.step, **QUIET)


def memory_html(values: form.Values, card: str, count: str) -> Markup:
    """What the form's run takes on such GPUs, or what is missing to say it."""
    asked = _asked(values, card, count)
    if isinstance(asked, str):
        return _note(asked)
    ways = _advice(asked.found, _differing(asked.given, asked.config))
    return _verdict(asked.found, asked.card) + _parts(asked.found) + ways + _ladder(asked)


def step_html(values: form.Values, card: str, count: str) -> Markup:
    """A step of the form's run, simulated on its largest batch."""
    asked = _asked(values, card, count)
    if isinstance(asked, str):
        return _note(asked)
    key = f"{asked.config.model_dump_json()} {card} {asked.found.worst}"
    return simulation_html(_steps.get(key, lambda: forecasting.simulated(asked.config, asked.found, asked.card)))


@dataclass(frozen=True)
class Asked:
    """A question that can be answered: the form's settings, and on so many GPUs; the model, the card, its host, the forecast."""

    given: RunConfig
    config: RunConfig
    shape: ModelShape
    card: Card | None
    host_bytes: int | None
    found: Found


def _asked(values: form.Values, card: str, count: str) -> Asked | str:
    """The question, or what is missing to ask it."""
    if not values.get("model"):
        return "Choose a model, and this says what the run takes before it is queued."
    given = form.check({**values, "data": values.get("data") or "none"})
    if isinstance(given, list):
        return "The settings must be right first."
    model = given.model
    shape = _shapes.get(model, lambda: _shape(model))
    if isinstance(shape, ShapeError):
        return f"{shape.message} {shape.fix}"
    config = forecasting.spread(given, int(count)) if count else given
    place = forecasting.card_of(review.machine()) if card == HERE else cards.CARDS[card]
    host = forecasting.host_memory() if card == HERE else None
    rows, known = worst_batch.counted(config, local_model(model)), calibration.known(place)
    found = forecasting.foresee(config, shape, place, host_bytes=host, rows=rows, calibration=known)
    return Asked(given, config, shape, place, host, found)


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
        return _note(
            "Nothing that was tried fits: take more or larger GPUs, a shorter maximum length or a smaller model."
        )
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


def _ladder(asked: Asked) -> Markup:
    """Every strategy with every method: what each takes, green where it fits."""
    if asked.card is None:
        return Markup("")
    batch = asked.found.forecast.batch
    rungs = ladder(asked.config, asked.shape, asked.card, batch=batch, host_bytes=asked.host_bytes)
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
