"""Texts about data sets and their problems for pages and commands. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from app.words import numbers
from training.config.data_sets import Source, sources
from training.data.issues import Issue
from training.errors import DataError, Problem
from worker.datasets.datasets import Refused


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
    used = [f"weight {source.weight:g}"] if source.weight else []
    used += [f"at most {numbers.plural(source.max_rows, 'row')}"] if source.max_rows else []
    used += [f"columns {source.columns}"] if source.columns else []
    return (source.name or names.get(source.path, source.path)) + (f" ({', '.join(used)})" if used else "")


def where(issue: Mapping[str, Any]) -> str:
    """The place of a problem: file, row and field, or the number of rows; empty for the whole file."""
    rows, line = issue.get("rows") or 1, issue.get("line")
    many = f"{numbers.plural(rows, 'row')}, the first is row {line:,}" if line and rows > 1 else ""
    parts = [str(issue.get("file") or ""), many or (f"row {line:,}" if line else ""), str(issue.get("field") or "")]
    return ", ".join(filter(None, parts))


def problems_of(error: DataError) -> list[dict[str, Any]]:
    """All problems of a refused file, as `training.data.issues.Issue` in dictionaries."""
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
