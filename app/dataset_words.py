"""Words about data sets that commands and pages alike use. All pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from app import text


def where(issue: Mapping[str, Any]) -> str:
    """The place of a problem: file, line and field, or how many rows have it; empty where it is the file's."""
    rows, line = issue.get("rows") or 1, issue.get("line")
    many = f"{text.plural(rows, 'row')}, the first in line {line:,}" if line and rows > 1 else ""
    parts = [str(issue.get("file") or ""), many or (f"line {line:,}" if line else ""), str(issue.get("field") or "")]
    return ", ".join(filter(None, parts))


def issue_lines(issues: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each problem in a line: how bad, where, what, and what to do."""
    return [
        f"{issue.get('level', 'error')}: {where(issue)}{': ' if where(issue) else ''}{issue['message']} {issue['fix']}".strip()
        for issue in issues
    ]
