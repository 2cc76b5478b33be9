"""A diagnosis as HTML, for the pages Diagnose and Run."""

from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup

from app.pages.common import form
from app.pages.common.html import each, facts, panel
from app.words import numbers
from training.config.fields import settings
from worker.diagnosis.diagnosis import UNKNOWN

_SHOWN = 600  # characters of a line


def diagnosis_html(diagnosis: dict[str, Any], run_id: str = "") -> Markup:
    """The cause, the evidence and the fixes of a diagnosis; with a button where a fix is a change of settings."""
    rank = diagnosis["first_failed_rank"]
    pairs: list[tuple[str, Any]] = [("Cause", Markup("<code>{}</code>").format(diagnosis["cause"]))]
    pairs += [("Confidence", numbers.percent(diagnosis["confidence"], 0))] if diagnosis["cause"] != UNKNOWN else []
    pairs += [] if rank is None else [("First rank to fail", str(rank))]
    evidence = zip(diagnosis["evidence_lines"], diagnosis["evidence"], strict=True)
    lines = each(
        "<li><i>{}</i><span>{}</span></li>", [(number, numbers.shorten(line, _SHOWN)) for number, line in evidence]
    )
    fixes = each("<li>{}</li>", [(fix,) for fix in diagnosis["fix"]])
    body = Markup("<p>{}</p>{}{}{}{}").format(
        diagnosis["explanation"].removeprefix(diagnosis["title"]).strip() or diagnosis["explanation"],
        facts(pairs),
        Markup('<ol class="evidence" aria-label="Evidence">{}</ol>').format(lines) if lines else "",
        Markup('<ul class="fixes">{}</ul>').format(fixes) if fixes else "",
        _button(diagnosis["changes"], run_id),
    )
    return panel(diagnosis["title"], body, classes="diagnosis")


def _button(changes: dict[str, Any], run_id: str) -> Markup:
    """A link to New run with the settings that fix the failure, as a clone of the run if Lathe knows it."""
    known = {name: form.shown(settings()[name], value) for name, value in changes.items() if name in settings()}
    if not known:
        return Markup("")
    texts = ", ".join(form.in_words(name, value) for name, value in known.items())
    clone = {"clone": run_id} if run_id else {}
    query = urlencode(clone | {name: numbers.plain(value) for name, value in known.items()})
    return Markup('<a class="button primary" href="/new?{}">New run with {}</a>').format(query, texts)
