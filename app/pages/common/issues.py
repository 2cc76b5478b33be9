"""The issues of a data set as HTML, with their rows and fixes."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from app.pages.common.html import each
from app.words.datasets import problems_of, where
from training.errors import DataError


def use_link(values: Mapping[str, Any], classes: str = "button primary") -> Markup:
    """A link to New run with these settings."""
    from urllib.parse import urlencode

    return Markup('<a class="{}" href="/new?{}">Use in a new run</a>').format(classes, urlencode(values))


def issues_html(issues: Sequence[Mapping[str, Any]]) -> Markup:
    """Each issue with its place, its message and its fix."""
    items = [
        (issue.get("level") or "error", place(issue), issue.get("message", ""), issue.get("fix", ""))
        for issue in issues
    ]
    if not items:
        return Markup("")
    return Markup('<ul class="issues">{}</ul>').format(
        each('<li class="{}"><span class="where">{}</span> {} <em>{}</em></li>', items)
    )


def problems_html(error: DataError) -> Markup:
    """All problems of a refused file."""
    return issues_html(problems_of(error))


def place(issue: Mapping[str, Any]) -> str:
    """The place of an issue with a colon: "row 3, prompt:"; empty for the whole file."""
    text = where(issue)
    return f"{text}:" if text else ""
