"""Texts about data sets and their problems for pages and commands. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from app.format import numbers
from app.texts import _
from training.config.data_sets import Source, sources
from training.data.row_formats import UNKNOWN
from training.data.survey import Issue
from training.errors import DataError, Problem
from worker.datasets.datasets import Refused
from worker.store.uses import DatasetUse


def data_words(value: str | None, names: Mapping[str, str]) -> str:
    """The data sets that a setting names, with what is used of each: "alpaca.jsonl (weight 3) + chat.jsonl (at most 500 rows)".

    `names` are those of stored data sets by id.
    """
    return " + ".join(_source_words(source, names) for source in sources(value))


def data_names(value: str | None, names: Mapping[str, str]) -> str:
    """The names of the data sets that a setting names."""
    return " + ".join(source.name or names.get(source.path, source.path) for source in sources(value))


def digest_label(name: str, label: str) -> str:
    """The label of a key of `Run.fingerprints`: "Data", "Data 2"."""
    number = name.partition(" ")[2]
    return f"{label} {number}".strip()


def _source_words(source: Source, names: Mapping[str, str]) -> str:
    used = [_("weight {weight}").format(weight=f"{source.weight:g}")] if source.weight else []
    if source.max_rows:
        used.append(_("at most {rows}").format(rows=numbers.plural(source.max_rows, "row", "rows")))
    used += [_("columns {columns}").format(columns=source.columns)] if source.columns else []
    return (source.name or names.get(source.path, source.path)) + (f" ({', '.join(used)})" if used else "")


def format_reason(dataset: Mapping[str, Any]) -> str:
    """Why the rows of a data set (app/documents/dataset.py) have their format, and which others there are.

    Empty if the format is unknown, since a problem then says so.
    """
    if dataset["format"] == UNKNOWN:
        return ""
    reason = ""
    if dataset["reason"]:
        because = _("{format}, because {reason}.")
        reason = because.format(format=dataset["format"].capitalize(), reason=dataset["reason"].rstrip("."))
    counts = dataset["counts"] or {}
    if len(counts) < 2:
        return reason
    each = _("{rows} of {format}")
    formats = ", ".join(
        each.format(rows=numbers.plural(rows, "row", "rows"), format=name) for name, rows in counts.items()
    )
    contains = _("Contains {formats}.").format(formats=formats)
    return f"{reason} {contains}".strip()


def share(part: float, whole: float) -> str:
    """A share in percent, never rounded to 0% or 100%. static/histogram.js writes it in the same way."""
    if not whole or not part:
        return "0%"
    percent = 100 * part / whole
    if percent < 0.1:
        return _("under 0.1%")
    return _("over 99.9%") if part < whole and percent > 99.9 else f"{percent:.1f}%"


def is_poorly_covered(script: Mapping[str, Any]) -> bool:
    """True if a tokenizer needs more than one token per character of a writing system, or has unknown tokens."""
    return bool(script["tokens_per_character"] > 1 or script["unknown_tokens"] > 0)


def poorly_covered(scripts: Sequence[Mapping[str, Any]]) -> str:
    """The names of the writing systems that a tokenizer covers poorly."""
    return ", ".join(script["script"] for script in scripts if is_poorly_covered(script))


def packing_gain(padding: float, packing: float) -> float:
    """How many times as many useful tokens per second packed rows train as padded ones, given their shares of pad tokens."""
    return (1 - packing) / (1 - padding) if padding < 1 else 1.0


def where(issue: Mapping[str, Any]) -> str:
    """The place of a problem: file, row and field, or the number of rows; empty for the whole file."""
    rows, line = issue.get("rows") or 1, issue.get("line")
    place = ""
    if line and rows > 1:
        all_rows = numbers.plural(rows, "row", "rows")
        place = _("{rows}, the first is row {row}").format(rows=all_rows, row=numbers.count(line))
    elif line:
        place = _("row {row}").format(row=numbers.count(line))
    parts = [str(issue.get("file") or ""), place, str(issue.get("field") or "")]
    return ", ".join(filter(None, parts))


def problems_of(error: DataError) -> list[dict[str, Any]]:
    """All problems of a refused file, as `training.data.survey.Issue` in dictionaries."""
    if isinstance(error, Refused):
        return [asdict(problem) for problem in error.issues]
    return [asdict(Issue.of(error, error.file))]


def data_problems(error: DataError) -> list[Problem]:
    """All problems of a refused file, each with its place as the field, as REST and the command line report them."""
    errors = [issue for issue in problems_of(error) if issue["level"] == "error"]
    return [Problem(where(issue), None, issue["message"], issue["fix"]) for issue in errors] or error.problems


def issue_lines(issues: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each problem in a line: level, place, message and fix."""
    return [
        f"{issue.get('level', 'error')}: {where(issue)}{': ' if where(issue) else ''}{issue['message']} {issue['fix']}".strip()
        for issue in issues
    ]


def removal(name: str, uses: Sequence[DatasetUse]) -> dict[str, str]:
    """The question before a data set is removed, with the runs that use it; without a label while they need it."""
    heading, needed = _("Remove {name}?").format(name=name), [use for use in uses if use.needs_it]
    if needed:
        return {
            "heading": heading,
            "text": _("In use by {runs}. Stop these runs first.").format(runs=_named(needed)),
            "label": "",
        }
    text = _("No run uses it. Lathe deletes its copy; your own file is not changed.")
    if uses:
        text = _(
            "Used by {runs}. These runs keep their settings and results, but cannot be resumed; a clone needs other data."
        ).format(runs=_named(uses))
    return {"heading": heading, "text": text, "label": _("Remove")}


def _named(uses: Sequence[DatasetUse]) -> str:
    shown = ", ".join(use.name for use in uses[:5])
    return shown if len(uses) <= 5 else _("{names} and {count} more").format(names=shown, count=len(uses) - 5)
