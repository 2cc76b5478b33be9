"""What is typed on the page New sweep as a sweep, and the plan of a sweep as HTML. No components."""

import re
from typing import Any

from markupsafe import Markup

from app.format import numbers
from app.format import sweep_text as words
from app.format.setting_text import label, value_in_words
from app.pages.common.html import each, panel, table
from app.texts import _
from training.config import yaml_text
from training.config.fields import ConfigError, settings
from training.errors import Problem
from training.units import NONE
from worker.store.tables.sweep_values import SweepSpec
from worker.sweeps.spec import parse_sweep

_EMPTY = Markup('<div class="empty"><h2>{}</h2><p>{}</p></div>')
_RANGE = re.compile(
    r"(?P<low>[-+.\deE]+)\s*(?:to|\.\.)\s*(?P<high>[-+.\deE]+)(?:[,\s]+(?P<how>log|step\s*(?P<step>[-+.\deE]+)))?"
)


def empty_html() -> Markup:
    """What stands in the place of the plan before a setting varies."""
    sentence = _(
        "Choose a setting that varies and give its values. You will see every run, its memory, and how long all of them take, "
        "before anything is queued."
    )
    return _EMPTY.format(_("No plan yet"), sentence)


def no_plan_html() -> Markup:
    """What stands in the place of the plan of a sweep with an error."""
    return _EMPTY.format(_("No plan"), _("The plan appears when the sweep has no error."))


def plan_html(plan: dict[str, Any]) -> Markup:
    """The summary, the notes, and the table of runs with the reason for each that is left out."""
    names = list(dict.fromkeys(name for run in plan["runs"] for name in run["changes"]))
    seeds = any(run["seed"] is not None for run in plan["runs"])
    heads = [
        (_("Trial"), "number"),
        *[(label(name), _kind(name)) for name in names],
        *([(_("Seed"), "number")] if seeds else []),
    ]
    heads += [(_("Memory"), "number"), (_("Steps"), "number"), (_("Time"), "number"), ("", ""), (_("Reason"), "")]
    drawn = each('<th class="{}"><span>{}</span></th>', [(kind, head) for head, kind in heads])
    rows = Markup("").join(_row(run, names, seeds=seeds) for run in plan["runs"])
    summary = Markup('<p class="plan-words" role="status"><b>{}</b></p><p class="note">{}</p>').format(
        words.plan_words(plan), " ".join(words.plan_notes(plan))
    )
    return panel(_("Plan"), summary + table("figures trials", drawn, rows))


def _row(run: dict[str, Any], names: list[str], *, seeds: bool) -> Markup:
    cells: list[tuple[str, Any]] = [("number", run["trial"])]
    cells += [(_kind(name), value_in_words(name, run["changes"][name])) for name in names]
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


def values_of(text: str) -> list[str] | dict[str, Any]:
    """The values in a text: "8, 16, 32" (with ";" where values contain commas), "1e-5 to 1e-3 log" or "8 to 64 step 8"."""
    if found := _RANGE.fullmatch(text.strip()):
        more = {"log": True} if found["how"] == "log" else {"step": found["step"]} if found["step"] else {}
        return {"low": found["low"], "high": found["high"], **more}
    parts = text.split(";" if ";" in text else ",")
    return [part.strip() for part in parts if part.strip()]


def sweep_of(configuration: str, method: str, varied: list[tuple[str, str]], given: dict[str, Any]) -> SweepSpec:
    """The sweep that the form describes; `varied` are settings with the text of their values, `given` the other fields.

    Raises:
        ConfigError: a field is wrong.
    """
    space: dict[str, Any] = {}
    for name, text in varied:
        if not name and not text.strip():
            continue
        if not name:
            raise ConfigError([Problem("space", text, "are values of no setting.", "Choose the setting that varies.")])
        if name in space:
            raise ConfigError([Problem(f"space.{name}", None, "is there twice.", "Put all its values in one line.")])
        space[name] = values_of(text)
    used = {name: value for name, value in given.items() if value not in ("", None) and applies(name, method)}
    return parse_sweep({"config": _configuration(configuration), "space": space, "method": method, **used})


def applies(name: str, method: str) -> bool:
    """True if a field of the form has an effect with this method."""
    if name in ("trials", "seed"):
        return method != "grid"
    return method == "halving" if name in ("reduction_factor", "min_steps") else True


def _configuration(text: str) -> dict[str, Any]:
    try:
        values = yaml_text.load(text or "")
    except yaml_text.YamlTextError as error:
        fix = "Each line is `setting: value`."
        raise ConfigError([Problem("config", None, f"is not valid YAML: {error}", fix)]) from None
    if not isinstance(values, dict):
        fix = "Give the settings that all runs share, at least model and data; or open this page from New run or a run."
        raise ConfigError([Problem("config", None, "is empty.", fix)])
    return {str(key): value for key, value in values.items()}
