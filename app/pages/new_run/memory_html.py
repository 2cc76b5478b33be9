"""The card Memory as HTML: the forecast, the most that fits, each answer behind a button, and a simulated step as a chart. Pure."""

import json
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from app.format import forecast_text as words
from app.format.setting_text import all_in_words
from app.texts import _, gettext_noop, language
from app.web.templating import TEMPLATES, Macros
from training.config.choices import Wanted
from training.forecast.advice import Combination
from training.forecast.forecast import HOST_MOMENTS
from training.forecast.gpus import GIB
from training.forecast.solve import Solution
from worker.forecasts.forecast import Estimate
from worker.forecasts.speed import Speed

CARD = Macros("new_run/memory.html")
WIDTH, HEIGHT = 560, 150
KINDS = (
    gettext_noop("weights"),
    gettext_noop("optimizer"),
    gettext_noop("gradients"),
    gettext_noop("buffers"),
    gettext_noop("activations"),
    gettext_noop("logits"),
    gettext_noop("vLLM"),
    gettext_noop("other"),
)
"""From the bottom up: memory that lasts for the whole step lies below memory that is freed within it."""
_LEAST_WIDTH = 50  # of a pass that has its name in the chart
TEMPLATES.globals |= {"forecast_words": words, "HOST_MOMENTS": HOST_MOMENTS, "GIB": GIB}


def forecast_html(estimate: Estimate, placement: dict[str, Any], speed: Speed, rungs: list[Combination]) -> Markup:
    """The verdict, the parts of the peak, time and cost, settings that fit, and a table of `rungs`.

    `placement` are the settings by which the forecast's configuration differs from the form's: the buttons set them too.
    """
    cells = {(rung.strategy, rung.method): rung for rung in rungs}
    methods = list(dict.fromkeys(rung.method for rung in rungs))
    ladder = [
        (name, [cells[name, method] for method in methods]) for name in dict.fromkeys(rung.strategy for rung in rungs)
    ]
    offered = [(changes, advice) for advice in estimate.advice if (changes := placement | advice.changes)]
    return CARD.forecast(estimate, placement, speed, offered, methods, ladder)


@dataclass(frozen=True)
class Answer:
    """One of the most that fits: its text, its memory or why there is none, and the JSON and the label of its button."""

    text: str
    memory: str
    sent: str = ""
    label: str = ""


def most_html(solutions: list[Solution], *, confirming: bool = False) -> Markup:
    """The answers, each with a button that applies it. `confirming`: simulated steps are on their way."""
    answers = [_answer(solution) for solution in solutions if solution.value is not None or solution.reason]
    return CARD.most(answers, confirming)


def _answer(solution: Solution) -> Answer:
    text = f"{_(words.QUESTIONS[solution.wanted])}: {words.value_text(solution)}"
    memory = words.memory_text(solution)
    is_gpu = solution.wanted is Wanted.GPU
    if solution.value is None or not (solution.changes or is_gpu):
        return Answer(text, memory)
    others = {name: value for name, value in solution.changes.items() if name != solution.wanted.value}
    more = [_("Also sets {settings}.").format(settings=all_in_words(others))] if others else []
    what = text if language() else f"{text[:1].lower()}{text[1:]}"  # a German noun keeps its capital
    sent = {"card": solution.value} if is_gpu else {"changes": solution.changes}
    return Answer(text, " ".join([memory, *more]), json.dumps(sent), _("Set {settings}").format(settings=what))


def simulation_html(done: dict[str, Any]) -> Markup:
    """The peak in words, the chart, and the parts of the peak; or why there is none."""
    if "problem" in done:
        return CARD.no_step(done["problem"])
    return CARD.step(done, _areas(done["timeline"]), _passes(done["timeline"]), WIDTH, HEIGHT)


def _areas(points: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """The kinds of memory from the bottom up, each with the outline of its area."""
    top = max(sum(point["bytes"].values()) for point in points) or 1
    below, areas = [0.0] * len(points), []
    for kind in [*KINDS, *({kind for point in points for kind in point["bytes"]} - set(KINDS))]:
        above = [low + point["bytes"].get(kind, 0) for low, point in zip(below, points, strict=True)]
        if above != below:
            areas.append((kind, _outline(below, above, _across(points), top)))
        below = above
    return areas


def _passes(points: list[dict[str, Any]]) -> list[tuple[float, str]]:
    """The position and name of each pass; a pass too short for its name has none."""
    begins = [number for number, point in enumerate(points) if number and point["phase"] != points[number - 1]["phase"]]
    ends, across = [*begins[1:], len(points)], _across(points)
    return [
        (begin * across, points[begin]["phase"] * ((end - begin) * across > _LEAST_WIDTH))
        for begin, end in zip(begins, ends, strict=True)
    ]


def _across(points: list[dict[str, Any]]) -> float:
    return WIDTH / max(len(points) - 1, 1)


def _outline(below: list[float], above: list[float], across: float, top: float) -> str:
    """The corners of an area, along its upper edge and back along its lower one."""
    corners = [*enumerate(above), *reversed(list(enumerate(below)))]
    return " ".join(f"{number * across:.1f},{HEIGHT * (1 - value / top):.1f}" for number, value in corners)
