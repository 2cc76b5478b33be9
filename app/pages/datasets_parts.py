"""The pieces of the page Data sets as HTML. Pure functions."""

import json
from collections.abc import Callable, Mapping, Sequence

from markupsafe import Markup

from app import text
from app.dataset_document import matches
from app.pages.dataset_parts import issues_html, use_link
from app.pages.intake import Intake
from app.pages.parts import ago, bar, each, table
from training.formats import UNKNOWN
from worker.models import Dataset
from worker.usage import User

_HEADS = (
    ("Name", ""),
    ("Format", ""),
    ("Rows", "number"),
    ("Size", "number"),
    ("Used by", ""),
    ("Notes", ""),
    ("Owner", ""),
    ("Added", "number"),
    ("", ""),
)


Allowed = Callable[[str], bool]
"""Whether whoever looks may change what somebody owns."""


def anything(_owner: str) -> bool:
    """As the server's own user may."""
    return True


def list_html(
    items: Sequence[Dataset], users: Mapping[str, Sequence[User]], search: str, may_change: Allowed = anything
) -> Markup:
    """The data sets that match, newest first, or what to do where there is none."""
    found = [item for item in items if matches(item, search)]
    query = Markup('<div data-search="{}">{}</div>')
    if not found:
        return query.format(search, _empty(search))
    heads = Markup("").join(Markup('<th class="{}"><span>{}</span></th>').format(kind, head) for head, kind in _HEADS)
    body = Markup("").join(_row(item, users.get(item.id, ()), may_change(item.owner)) for item in found)
    return query.format(search, table("runs sets", heads, body))


def _row(item: Dataset, users: Sequence[User], mine: bool) -> Markup:
    link = Markup('<a href="/dataset?id={}{}" title="{}">{}</a>').format(item.id, _tab(item), item.name, item.name)
    remove = Markup('<button type="button" class="button small" data-send="{}" aria-label="Remove {}">Remove</button>')
    actions = use_link({"data": item.id}, "button small")
    if mine:
        actions += remove.format(json.dumps({"remove": item.id}), item.name)
    cells = [
        ("name", link),
        ("", Markup('{} <span class="faint">{}</span>').format(item.shape, item.format)),
        ("number", text.count(item.rows)),
        ("number", text.byte_size(item.bytes)),
        ("", text.plural(len(users), "run") if users else text.NONE),
        ("", _notes(item)),
        ("", item.owner),
        ("number", ago(item.created_at)),
        ("actions", actions),
    ]
    return Markup("<tr>{}</tr>").format(each('<td class="{}">{}</td>', cells))


def _notes(item: Dataset) -> Markup:
    if item.shape == UNKNOWN:
        return Markup('<a href="/dataset?id={}{}" class="tag bad">needs a mapping</a>').format(item.id, _tab(item))
    issues = item.warnings or []
    mapped = (
        Markup('<span class="tag" title="{}">mapped</span> ').format(item.columns_map)
        if item.columns_map
        else Markup("")
    )
    if not issues:
        return mapped
    titles = "\n".join(str(issue.get("message", "")) for issue in issues)
    return mapped + Markup('<a href="/dataset?id={}" class="tag warn" title="{}">{}</a>').format(
        item.id, titles, text.plural(len(issues), "warning")
    )


def _tab(item: Dataset) -> str:
    """A set that no format fits opens where its columns are chosen."""
    return "&tab=columns" if item.shape == UNKNOWN else ""


def _empty(search: str) -> Markup:
    if search:
        return Markup(
            '<div class="empty"><h2>No data set matches</h2><p>Nothing here is about “{}”.</p>'
            '<a class="button" href="/datasets">Show all data sets</a></div>'
        ).format(search)
    return Markup(
        '<div class="empty"><h2>No data sets yet</h2><p>Drop a file above: its format is found by itself, and what is wrong in it '
        "is named by line. Or look around with the sample that comes with Lathe.</p>"
        """<button type="button" class="button primary" data-send='{"sample": true}'>Take the starter sample</button></div>"""
    )


def intakes_html(intakes: Sequence[Intake], may_change: Allowed = anything) -> Markup:
    """Files that are being checked, and what came of those that were."""
    return (
        Markup('<ul class="incoming">{}</ul>').format(
            Markup("").join(_intake(one, may_change(one.owner)) for one in intakes)
        )
        if intakes
        else Markup("")
    )


def _intake(one: Intake, mine: bool) -> Markup:
    dismiss = Markup('<button type="button" class="button small" data-send="{}">Dismiss</button>').format(
        json.dumps({"dismiss": one.id})
    )
    dismiss = dismiss if mine else Markup("")
    if one.state == "checking":
        head = Markup(
            '<span><b>{}</b> is being checked: every row is read ({})</span><span data-since="{}"></span>'
        ).format(one.name, text.byte_size(one.bytes) if one.bytes else "from the hub", f"{one.since:.0f}")
        return Markup('<li class="checking"><header>{}</header>{}</li>').format(
            head, bar(None, label="checking", classes="wide")
        )
    if one.state == "refused":
        told = issues_html(one.problems)
        return Markup(
            '<li class="refused"><header><span><b class="bad">{}</b> was not taken in.</span>{}</header>{}</li>'
        ).format(one.name, dismiss, told)
    links = Markup(" and ").join(Markup('<a href="/dataset?id={}">{}</a>').format(*made) for made in one.made)
    values = dict(zip(("data", "validation_data"), (made[0] for made in one.made), strict=False))
    use = use_link(values if one.paired else {"data": one.made[0][0]}, "button small")
    return Markup('<li class="done"><header><span>{} {} ready.</span><span>{} {}</span></header></li>').format(
        links, "are" if len(one.made) > 1 else "is", use, dismiss
    )


def removal_html(item: Dataset, users: Sequence[User]) -> Markup:
    """What is asked before a data set is removed: what uses it, and what becomes of that."""
    head = Markup("<h2>Remove {}?</h2>").format(item.name)
    holding = [user for user in users if user.needs_it]
    if holding:
        return head + Markup("<p>It is needed by {}: stop what needs it first.</p>").format(_named(holding))
    if users:
        return head + Markup(
            "<p>It was used by {}. They keep their settings and results; they cannot be resumed, and a clone needs other data.</p>"
        ).format(_named(users))
    return head + Markup("<p>No run uses it. The file is deleted from Lathe's store; yours stays where it is.</p>")


def refusal_html(heading: str, reason: str) -> Markup:
    """Why a data set was not removed."""
    return Markup("<h2>{}</h2><p>{}</p>").format(heading, reason)


def _named(users: Sequence[User]) -> Markup:
    shown = Markup(", ").join(Markup('<a href="/run?id={}">{}</a>').format(user.id, user.name) for user in users[:5])
    return shown + (f" and {len(users) - 5} more" if len(users) > 5 else "")
