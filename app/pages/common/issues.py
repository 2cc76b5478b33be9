"""The issues of a data set as HTML, with their rows and fixes."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup

from app.pages.common.html import each
from app.words.datasets import where


def use_link(values: Mapping[str, Any], classes: str = "button primary") -> Markup:
    """A link to New run with these settings."""
    return Markup('<a class="{}" href="/new?{}">Use in a new run</a>').format(classes, urlencode(values))


def issues_html(issues: Sequence[Mapping[str, Any]]) -> Markup:
    """Each issue with its place, its message and its fix."""
    items = [
        (issue.get("level") or "error", _place(issue), issue.get("message", ""), issue.get("fix", ""))
        for issue in issues
    ]
    if not items:
        return Markup("")
    return Markup('<ul class="issues">{}</ul>').format(
        each('<li class="{}"><span class="where">{}</span> {} <em>{}</em></li>', items)
    )


def _place(issue: Mapping[str, Any]) -> str:
    """The place of an issue with a colon: "row 3, prompt:"; empty for the whole file."""
    text = where(issue)
    return f"{text}:" if text else ""
