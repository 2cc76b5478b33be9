"""A diagnosis as HTML, for the pages Diagnose and Run."""

from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup

from app import form, text
from app.pages.parts import each, facts, panel
from training.fields import settings
from worker.diagnosis import UNKNOWN

_SHOWN = 600  # characters of a line


def diagnosis_html(found: dict[str, Any], run_id: str = "") -> Markup:
    """The cause, what it was worked out from, the lines that show it, and what mends it; of a run also with one click."""
    rank = found["first_failed_rank"]
    known: list[tuple[str, Any]] = [("Cause", Markup("<code>{}</code>").format(found["cause"]))]
    known += [("Confidence", text.percent(found["confidence"], 0))] if found["cause"] != UNKNOWN else []
    known += [] if rank is None else [("First rank to fail", str(rank))]
    numbered = [
        (number, text.shorten(line, _SHOWN))
        for number, line in zip(found["evidence_lines"], found["evidence"], strict=True)
    ]
    lines = each("<li><i>{}</i><span>{}</span></li>", numbered)
    fixes = each("<li>{}</li>", [(one,) for one in found["fix"]])
    body = Markup("<p>{}</p>{}{}{}{}").format(
        found["explanation"].removeprefix(found["title"]).strip() or found["explanation"],
        facts(known),
        Markup('<ol class="evidence" aria-label="Lines that show it">{}</ol>').format(lines) if lines else "",
        Markup('<ul class="fixes">{}</ul>').format(fixes) if fixes else "",
        _button(found["changes"], run_id),
    )
    return panel(found["title"], body, classes="diagnosis")


def _button(changes: dict[str, Any], run_id: str) -> Markup:
    """A link to New run with the settings that mend it: as a clone of the run, where it is one of Lathe's."""
    known = {name: form.shown(settings()[name], value) for name, value in changes.items() if name in settings()}
    if not known:
        return Markup("")
    words = ", ".join(f"{form.label(name)} {_word(value)}" for name, value in known.items())
    query = urlencode(({"clone": run_id} if run_id else {}) | {name: _word(value) for name, value in known.items()})
    return Markup('<a class="button primary" href="/new?{}">New run with {}</a>').format(query, words)


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
