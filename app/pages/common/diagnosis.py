"""A diagnosis as HTML, for the pages Diagnose and Run."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup

from app.pages.common import form
from app.pages.common.html import each, panel
from app.web.templating import TEMPLATES
from app.words import numbers
from training.config.fields import settings
from worker.diagnosis.diagnosis import NO_FAILURE, UNKNOWN

_SHOWN = 600  # characters of a line


def evidence_html(diagnosis: dict[str, Any]) -> Markup:
    """The numbered lines of the log that show the cause."""
    evidence = zip(diagnosis["evidence_lines"], diagnosis["evidence"], strict=True)
    lines = each(
        "<li><i>{}</i><span>{}</span></li>", [(number, numbers.shorten(line, _SHOWN)) for number, line in evidence]
    )
    return Markup('<ol class="evidence" aria-label="Evidence">{}</ol>').format(lines) if lines else lines


def comparison_html(compared: dict[str, Any] | None) -> Markup:
    """The failed run beside a finished one: settings that differ, and new log lines; nothing if there is no difference."""
    if compared is None or not (compared["settings"] or compared["lines"]):
        return Markup("")
    lead = Markup(
        '<p class="note">Compared with <a href="/run?id={}">{}</a>, which finished with the same {}.</p>'
    ).format(compared["run"], compared["name"], ", ".join(form.label(name).lower() for name in compared["shared"]))
    changed = [
        (form.label(name), _value(name, before), _value(name, now))
        for name, (before, now) in compared["settings"].items()
    ]
    settings_list = each("<tr><th>{}</th><td>{}</td><td>{}</td></tr>", changed)
    heads = Markup("<thead><tr><th>Setting</th><th>Finished run</th><th>This run</th></tr></thead>")
    table = Markup('<table class="options">{}<tbody>{}</tbody></table>').format(heads, settings_list) if changed else ""
    lines = each("<li><span>{}</span></li>", [(numbers.shorten(line, _SHOWN),) for line in compared["lines"]])
    new = (
        Markup('<h3>New log lines</h3><ol class="evidence" aria-label="New log lines">{}</ol>').format(lines)
        if lines
        else ""
    )
    return panel("What is different", lead + table + new, classes="diagnosis")


def changes_link(changes: dict[str, Any], run_id: str = "") -> Markup:
    """A link to New run with the settings that fix the failure, as a clone of the run if Lathe knows it."""
    known = {name: form.shown(settings()[name], value) for name, value in changes.items() if name in settings()}
    if not known:
        return Markup("")
    texts = ", ".join(form.in_words(name, value) for name, value in known.items())
    clone = {"clone": run_id} if run_id else {}
    query = urlencode(clone | {name: numbers.plain(value) for name, value in known.items()})
    return Markup('<a class="button primary" href="/new?{}">New run with {}</a>').format(query, texts)


def _value(name: str, value: Any) -> str:
    return settings()[name].in_words(value) if name in settings() and value is not None else str(value)


def known_settings(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes of settings that this version has, as its form takes them."""
    return {name: form.shown(settings()[name], value) for name, value in changes.items() if name in settings()}


def new_run_address(values: Mapping[str, Any], run_id: str = "") -> str:
    """The address of New run with these settings, as a clone of a run if one is given."""
    clone = {"clone": run_id} if run_id else {}
    return "/new?" + urlencode(clone | {name: numbers.plain(value) for name, value in values.items()})


def settings_in_words(values: Mapping[str, Any]) -> str:
    """Settings by their labels: "Micro batch size: 2, LoRA r: 8"."""
    return ", ".join(form.in_words(name, value) for name, value in values.items())


def setting_value(name: str, value: Any) -> str:
    """A value as pages show it; that of an unknown setting as it is."""
    return settings()[name].in_words(value) if name in settings() and value is not None else str(value)


TEMPLATES.filters["setting_label"] = form.label
TEMPLATES.globals |= {
    "UNEXPLAINED": (UNKNOWN, NO_FAILURE),
    "known_settings": known_settings,
    "new_run_address": new_run_address,
    "setting_value": setting_value,
    "settings_in_words": settings_in_words,
}
