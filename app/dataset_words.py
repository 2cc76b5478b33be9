"""Words about data sets and their problems that commands and pages alike use. All pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from app import text
from training.failure import DataError
from training.issues import Issue
from worker.datasets import Refused


def where(issue: Mapping[str, Any]) -> str:
    """The place of a problem: file, line and field, or how many rows have it; empty where it is the file's."""
    rows, line = issue.get("rows") or 1, issue.get("line")
    many = f"{text.plural(rows, 'row')}, the first is row {line:,}" if line and rows > 1 else ""
    parts = [str(issue.get("file") or ""), many or (f"row {line:,}" if line else ""), str(issue.get("field") or "")]
    return ", ".join(filter(None, parts))


def problems_of(error: DataError) -> list[dict[str, Any]]:
    """Everything that is wrong with a file that was refused, as `training.issues.Issue` has it."""
    if isinstance(error, Refused):
        return [asdict(problem) for problem in error.problems]
    return [asdict(Issue.of(error, error.file))]


def issue_lines(issues: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each problem in a line: how bad, where, what, and what to do."""
    return [
        f"{issue.get('level', 'error')}: {where(issue)}{': ' if where(issue) else ''}{issue['message']} {issue['fix']}".strip()
        for issue in issues
    ]
