"""What is the most that fits, and time and cost of the form's run, as HTML beside the memory forecast."""

import json

from markupsafe import Markup

from app.pages.common import form
from app.pages.common.html import each
from app.words.solving import QUESTIONS, memory_text, speed_rows, value_text
from training.forecast.solve import Solution, Wanted
from worker.forecasts.speed import Speed


def most_html(solutions: list[Solution], *, confirming: bool = False) -> Markup:
    """The answers, each with a button that applies it. `confirming`: simulated steps are on their way."""
    rows = Markup("").join(_answer(found) for found in solutions if found.value is not None or found.reason)
    note = Markup('<p class="note looking">Confirming with simulated steps.</p>') if confirming else Markup("")
    return Markup('<ul class="ways most">{}</ul>{}').format(rows, note)


def _answer(found: Solution) -> Markup:
    question = QUESTIONS[found.wanted]
    if found.value is None:
        return Markup("<li><b>{}: none</b><span>{}</span></li>").format(question, found.reason)
    sent = {"card": found.value} if found.wanted is Wanted.GPU else {"changes": found.changes}
    text = f"{question}: {value_text(found)}"
    if not found.changes and found.wanted is not Wanted.GPU:
        return Markup("<li><b>{}</b><span>{}</span></li>").format(text, memory_text(found))
    others = {name: value for name, value in found.changes.items() if name != found.wanted.value}
    more = f" Also sets {', '.join(form.in_words(name, value) for name, value in others.items())}." if others else ""
    return Markup('<li><button type="button" class="fix" data-send="{}">Set {}</button><span>{}{}</span></li>').format(
        json.dumps(sent), f"{text[:1].lower()}{text[1:]}", memory_text(found), more
    )


def speed_html(speed: Speed) -> Markup:
    """Time, energy and cost, and what they rest on."""
    rows = each("<div><dt>{}</dt><dd>{}</dd></div>", speed_rows(speed))
    notes = each('<p class="note">{}</p>', [(note,) for note in speed.notes])
    if not speed.tokens_per_second:
        return notes
    return Markup('<h3>Time and cost</h3><dl class="legend speed">{}</dl>{}').format(rows, notes)
