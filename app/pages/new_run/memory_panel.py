"""The memory forecast beside the form of New run, after each change, with settings that fit behind buttons."""

import json
from dataclasses import dataclass
from functools import partial
from typing import Any

import gradio as gr
from markupsafe import Markup

from app.access import callers
from app.pages.common import form
from app.pages.common.cache import TimedCache
from app.pages.common.html import HTML, UNQUEUED, card_title, html
from app.pages.new_run import review
from app.pages.new_run.memory_html import CARD, forecast_html, most_html, simulation_html
from app.texts import _
from app.web.gradio_texts import made
from app.web.templating import PARTS
from training.config.applies import Values
from training.config.choices import Wanted
from training.config.run_config import RunConfig, on_gpus
from training.config.task import Task
from training.errors import UserError
from training.forecast.advice import Combination, strategy_table
from training.forecast.gpus import CARDS, of_machine
from training.forecast.solve import Solution
from training.model_info.config_json import ModelError
from training.model_info.shape import ModelShape
from worker.allowed_paths import HUB_ID
from worker.forecasts import forecast as forecasting
from worker.forecasts import prices, shapes, simulating, solving, speed
from worker.forecasts.forecast import Estimate, estimate_settled
from worker.forecasts.prices import Prices
from worker.store.database import UNREACHABLE

HERE = "here"
_LONGEST = 500  # characters of a hub id or a revision
_COUNTS = ("1", "2", "4", "8")
_steps: TimedCache[str, dict[str, Any]] = TimedCache(seconds=600, size=16)
_solutions: TimedCache[str, list[Solution]] = TimedCache(seconds=120, size=32)
_shapes: TimedCache[tuple[str, str | None, Task], ModelShape | ModelError] = TimedCache(seconds=30)


@dataclass(frozen=True)
class MemoryPanel:
    """The GPU model, the number of GPUs, the forecast, the most that fits, and a simulated step."""

    card: gr.Dropdown
    count: gr.Radio
    answer: HTML
    ask: gr.Button
    most: HTML
    simulate: gr.Button
    step: HTML


def build() -> MemoryPanel:
    """The components, set to this machine."""
    here = of_machine(review.machine())
    own = made(lambda: _("This machine ({name})").format(name=here.label if here else "CPU"))
    with gr.Column(elem_classes="card memory-card"):
        card_title("Memory")
        with gr.Row(elem_classes="settings"):
            choices = [(own, HERE), *((made(partial(str, card.label)), name) for name, card in CARDS.items())]
            card = gr.Dropdown(choices, value=HERE, label="GPU", elem_id="memory-gpu", elem_classes="setting pick")
            count = gr.Radio(
                [("Auto", ""), *((count, count) for count in _COUNTS)],
                value="",
                label="Number of GPUs",
                elem_id="memory-gpus",
                elem_classes="setting buttons",
            )
        answer = html(script="lathe.sendClicks(element, trigger)", classes="memory")
        ask = gr.Button("What is the most that fits?", size="sm", elem_id="most")
        most = html(script="lathe.sendClicks(element, trigger)", classes="memory")
        simulate = gr.Button("Simulate a step", size="sm", elem_id="simulate")
        step = html(classes="memory")
    return MemoryPanel(card, count, answer, ask, most, simulate, step)


def wire(panel: MemoryPanel, changed: Any, inputs: list[Any]) -> None:
    """Forecasts after `changed`, the event of a changed setting, and after a change of the GPUs; connects the buttons."""

    def fetched(asked: dict[str, Any], *typed: Any) -> Any:
        return (_fetch(asked) or _by_name(memory_html)(*typed)) if asked else gr.skip()

    most, confirmed = (_by_name(partial(most_that_fits, simulate=simulate)) for simulate in (False, True))
    fields, asked = _fields(panel, inputs), gr.State({})
    panel.ask.click(most, fields, panel.most, **UNQUEUED).then(confirmed, fields, panel.most, **UNQUEUED)
    panel.most.select(_picked, None, panel.card, **UNQUEUED)
    panel.answer.select(_asked, None, [panel.answer, asked], **UNQUEUED).then(
        fetched, [asked, *fields], panel.answer, **UNQUEUED
    )
    refresh_after(changed, panel, inputs)
    picked = [panel.card.change, panel.count.change]
    forecast, step = _by_name(memory_html), _by_name(step_html)
    _settle(gr.on(picked, forecast, fields, panel.answer, trigger_mode="always_last", **UNQUEUED), panel, inputs)
    panel.simulate.click(_simulating, None, panel.step, **UNQUEUED).then(step, fields, panel.step, **UNQUEUED)


def refresh_after(event: Any, panel: MemoryPanel, inputs: list[Any]) -> None:
    """Forecasts again after an event, for example when the data set is tokenized."""

    fields = _fields(panel, inputs)
    forecasted = event.then(_by_name(memory_html), fields, panel.answer, trigger_mode="always_last", **UNQUEUED)
    _settle(forecasted, panel, inputs)


def _settle(event: Any, panel: MemoryPanel, inputs: list[Any]) -> None:
    """Simulates a step after a forecast that is too close to the limit; else removes the one of earlier settings.

    A forecast of the same settings leaves their step on the page.
    """

    def close(values: Values, card: str, count: str) -> list[Any]:
        question = _question(values, card, count)
        if isinstance(question, Markup) or not question.estimate.forecast.close:
            return [Markup(""), False]
        if _step_key(question, card) in _steps:
            return [_step(question, card), False]
        return [_simulating(), True]

    def simulated(decides: bool, *fields: Any) -> Any:
        return _by_name(step_html)(*fields) if decides else gr.skip()

    fields, decides = _fields(panel, inputs), gr.State(False)
    settled = event.then(_by_name(close), fields, [panel.step, decides], trigger_mode="always_last", **UNQUEUED)
    settled.then(simulated, [decides, *fields], panel.step, trigger_mode="always_last", **UNQUEUED)


def _simulating() -> Markup:
    return PARTS.note(_("Simulating a step. A large model takes up to a minute."), "looking")


_by_name = partial(form.by_name, before=2)  # GPU and number of GPUs, as in `_fields`


def _fields(panel: MemoryPanel, inputs: list[Any]) -> list[Any]:
    return [panel.card, panel.count, *inputs]


def memory_html(values: Values, card: str, count: str) -> Markup:
    """The memory forecast of the form's run on these GPUs, or what it still needs."""
    question = _question(values, card, count)
    if isinstance(question, Markup):
        return question
    estimate, setup = question.estimate, question.estimate.setup
    placement = _placement_changes(question.typed, setup.config)
    return forecast_html(estimate, placement, speed.speed_of(setup, _prices()), _rungs(estimate))


def fits(values: Values) -> bool | None:
    """Whether the form's run fits on this machine; None if that is not known."""
    config = form.check_without_data(values)
    if isinstance(config, list):
        return None
    here, host = of_machine(review.machine()), forecasting.host_memory()
    try:
        forecast = estimate_settled(callers.settled(config), here, host, advises=False, read=_remembered).forecast
    except UserError:  # its config.json is not here, or the user may not read it
        return None
    return None if forecast.unknown else forecast.fits


def _rungs(estimate: Estimate) -> list[Combination]:
    """Every strategy with every method; none where the forecast is for no GPU, or does not know the model."""
    setup, forecast = estimate.setup, estimate.forecast
    if setup.card is None or forecast.unknown:
        return []
    return strategy_table(setup.config, setup.shape, setup.card, batch=forecast.batch, host_bytes=setup.host_bytes)


def most_that_fits(values: Values, card: str, count: str, *, simulate: bool) -> Markup:
    """The most that fits on these GPUs, by formula; with `simulate` confirmed by simulated steps, which takes up to a minute."""
    question = _question(values, card, count)
    if isinstance(question, Markup):
        return question
    setup = question.estimate.setup
    wanted = [setting for setting in Wanted if setting is not Wanted.LORA_R or setup.config.method.is_lora]
    prices = _prices()
    key = f"{_step_key(question, card)} {simulate} {prices}"
    solutions = _solutions.get(key, lambda: solving.solved(setup, wanted, prices, simulate=simulate))
    return most_html(solutions, confirming=not simulate)


def _prices() -> Prices:
    try:
        return prices.of_user(callers.current().name)
    except UNREACHABLE:
        return Prices()


def _picked(event: gr.EventData) -> Any:
    """The GPU of the pressed button."""
    picked = event._data.get("card") if isinstance(event._data, dict) else None
    return picked if isinstance(picked, str) and picked in CARDS else gr.skip()


def step_html(values: Values, card: str, count: str) -> Markup:
    """A step of the form's run, simulated on its largest batch."""
    question = _question(values, card, count)
    return question if isinstance(question, Markup) else _step(question, card)


@dataclass(frozen=True)
class Question:
    """A run and its GPUs: the settings as typed, and the forecast for the chosen number of GPUs."""

    typed: RunConfig
    estimate: Estimate


def _question(values: Values, card: str, count: str) -> Question | Markup:
    """The run to forecast, or what the form still needs."""
    if not values.get("model"):
        return PARTS.note(_("Choose a model to see the memory forecast."))
    typed = form.check_without_data(values)
    if isinstance(typed, list):
        return PARTS.note(_("Fix the problems above to see the memory forecast."))
    settled = callers.settled(on_gpus(typed, int(count or 0)))
    gpu = of_machine(review.machine()) if card == HERE else CARDS[card]
    host_bytes = forecasting.host_memory() if card == HERE else None
    try:
        return Question(typed, estimate_settled(settled, gpu, host_bytes, read=_remembered))
    except ModelError as error:
        return _unknown_shape(error, typed.revision)


def _step(question: Question, card: str) -> Markup:
    simulate = partial(simulating.simulated, question.estimate)
    return simulation_html(_steps.get(_step_key(question, card), simulate))


def _step_key(question: Question, card: str) -> str:
    return f"{question.estimate.setup.config.model_dump_json()} {card} {question.estimate.worst}"


def _remembered(model: str, revision: str | None, task: Task) -> ModelShape:
    """As `shapes.shape_at`, read anew after half a minute."""

    def read() -> ModelShape | ModelError:
        try:
            return shapes.shape_at(model, revision, task)
        except ModelError as error:
            return error

    shape = _shapes.get((model, revision, task), read)
    if isinstance(shape, ModelError):
        raise shape.with_traceback(None)
    return shape


def _unknown_shape(error: ModelError, revision: str | None) -> Markup:
    """Why there is no forecast; for a hub model with a button that fetches its config.json."""
    name = str(error.problem.value)
    sent = json.dumps({"fetch": name, "revision": revision}) if HUB_ID.fullmatch(name) else ""
    return CARD.no_shape(error, sent)


def _asked(event: gr.EventData) -> list[Any]:
    """The model whose config.json a button asks for, and a note while it is fetched."""
    asked = event._data if isinstance(event._data, dict) else {}
    known = {name: str(asked.get(name) or "")[:_LONGEST] for name in ("fetch", "revision")}
    if not known["fetch"]:
        return [gr.skip(), {}]
    return [PARTS.note(_("Fetching config.json from the hub."), "looking"), known]


def _fetch(asked: dict[str, Any]) -> Markup | None:
    """Fetches the config.json of a hub model. Returns why it cannot be had."""
    try:
        shapes.fetch(asked["fetch"], asked["revision"] or None)
    except ModelError as error:
        return PARTS.alert(str(error.problem.value), error.message, error.fix)
    _shapes.clear()
    return None


def _placement_changes(typed: RunConfig, config: RunConfig) -> dict[str, Any]:
    """Processes and strategy of `config`, where the chosen number of GPUs makes them differ from the form's."""
    names = ("num_processes", "strategy")
    return {name: getattr(config, name) for name in names if getattr(config, name) != getattr(typed, name)}
