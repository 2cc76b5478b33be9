"""The plan of a sweep as HTML. Pure."""

from typing import Any

from markupsafe import Markup

from app.pages.common.form import label
from app.pages.common.html import each, panel, table
from app.words import numbers
from app.words import sweeps as words
from training.config.fields import settings
from training.units import NONE

EMPTY = Markup(
    '<div class="empty"><h2>No plan yet</h2><p>Choose a setting that varies and give its values. You will see every run, its '
    "memory, and how long all of them take, before anything is queued.</p></div>"
)

NO_PLAN = Markup('<div class="empty"><h2>No plan</h2><p>The plan appears when the sweep has no error.</p></div>')


def plan_html(plan: dict[str, Any]) -> Markup:
    """The summary, the notes, and the table of runs with the reason for each that is left out."""
    names = list(dict.fromkeys(name for run in plan["runs"] for name in run["changes"]))
    seeds = any(run["seed"] is not None for run in plan["runs"])
    heads = [
        ("Trial", "number"),
        *[(label(name), _kind(name)) for name in names],
        *([("Seed", "number")] if seeds else []),
    ]
    heads += [("Memory", "number"), ("Steps", "number"), ("Time", "number"), ("", ""), ("Reason", "")]
    drawn = each('<th class="{}"><span>{}</span></th>', [(kind, head) for head, kind in heads])
    rows = Markup("").join(_row(run, names, seeds=seeds) for run in plan["runs"])
    summary = Markup('<p class="plan-words" role="status"><b>{}</b></p><p class="note">{}</p>').format(
        words.plan_words(plan), " ".join(words.plan_notes(plan))
    )
    return panel("Plan", summary + table("figures trials", drawn, rows))


def _row(run: dict[str, Any], names: list[str], *, seeds: bool) -> Markup:
    known = settings()
    cells: list[tuple[str, Any]] = [("number", run["trial"])]
    cells += [(_kind(name), known[name].in_words(run["changes"][name])) for name in names]
    cells += [("number", run["seed"])] if seeds else []
    time = NONE if run["seconds"] is None else numbers.coarse(run["seconds"])
    bad = bool(run["problems"]) or run["fits"] is False
    cells += [
        ("number", words.memory(run)),
        ("number", numbers.count(run["steps"])),
        ("number", time),
        ("", Markup('<span class="{}">{}</span>').format("bad" if bad else "", words.verdict(run))),
        ("reason", run["reason"]),
    ]
    return Markup('<tr class="{}">{}</tr>').format(
        "" if run["starts"] else "out", each('<td class="{}">{}</td>', cells)
    )


def _kind(name: str) -> str:
    return "number" if settings()[name].kind in ("integer", "number") else ""
