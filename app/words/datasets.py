"""Texts about data sets and their problems for pages and commands. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from app.words import numbers
from training.data.issues import Issue
from training.errors import DataError
from worker.datasets.datasets import Refused


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


def issue_lines(issues: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each problem in a line: level, place, message and fix."""
    return [
        f"{issue.get('level', 'error')}: {where(issue)}{': ' if where(issue) else ''}{issue['message']} {issue['fix']}".strip()
        for issue in issues
    ]
