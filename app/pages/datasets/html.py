"""The parts of the page Data sets as HTML. Pure functions."""

from collections.abc import Callable, Collection, Mapping, Sequence

from markupsafe import Markup

from app.access.intake import Intake
from app.documents.dataset import matches
from app.pages.common.html import ago, bar, each, send_button, table
from app.pages.common.issues import issues_html, use_link
from app.words import numbers
from training.data.row_formats import UNKNOWN
from training.units import NONE, byte_size
from worker.store.dataset_uses import DatasetUse
from worker.store.tables import Dataset

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


MayChange = Callable[[str], bool]
"""Takes an owner; true if the caller may change what the owner has."""


def everything(_owner: str) -> bool:
    """The permission of the server's own user."""
    return True


def list_html(
    items: Sequence[Dataset],
    users: Mapping[str, Sequence[DatasetUse]],
    search: str,
    may_change: MayChange = everything,
    uploads: Collection[str] = (),
) -> Markup:
    """The matching data sets, newest first, or an empty state; `uploads` are the ids of those that the caller uploaded too."""
    matching = [item for item in items if matches(item, search)]
    query = Markup('<div data-search="{}">{}</div>')
    if not matching:
        return query.format(search, _empty(search))
    heads = Markup("").join(Markup('<th class="{}"><span>{}</span></th>').format(kind, head) for head, kind in _HEADS)
    body = Markup("").join(
        _row(item, users.get(item.id, ()), may_change(item.owner) or item.id in uploads) for item in matching
    )
    return query.format(search, table("runs sets", heads, body))


def _row(item: Dataset, users: Sequence[DatasetUse], allowed: bool) -> Markup:
    link = Markup('<a href="/dataset?id={}{}" title="{}">{}</a>').format(item.id, _tab(item), item.name, item.name)
    actions = use_link({"data": item.id}, "button small")
    if allowed:
        actions += send_button("Remove", {"remove": item.id}, f"Remove {item.name}")
    cells = [
        ("name", link),
        ("", Markup('{} <span class="faint">{}</span>').format(item.shape, item.format)),
        ("number", numbers.count(item.rows)),
        ("number", byte_size(item.bytes)),
        ("", numbers.plural(len(users), "run") if users else NONE),
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
        item.id, titles, numbers.plural(len(issues), "warning")
    )


def _tab(item: Dataset) -> str:
    """The query of the tab to open: a data set of unknown format opens at its columns."""
    return "&tab=columns" if item.shape == UNKNOWN else ""


def _empty(search: str) -> Markup:
    if search:
        return Markup(
            '<div class="empty"><h2>No matching data sets</h2><p>No data sets match “{}”.</p>'
            '<a class="button" href="/datasets">Show all data sets</a></div>'
        ).format(search)
    return Markup(
        '<div class="empty"><h2>No data sets yet</h2><p>Upload a file above. Lathe detects its format and lists its problems '
        "by line.</p>"
        """<button type="button" class="button primary" data-send='{"sample": true}'>Add the starter sample</button></div>"""
    )


def intakes_html(intakes: Sequence[Intake], may_change: MayChange = everything) -> Markup:
    """The imports that are running or have ended lately."""
    if not intakes:
        return Markup("")
    items = Markup("").join(_intake(intake, may_change(intake.owner)) for intake in intakes)
    return Markup('<ul class="incoming">{}</ul>').format(items)


def _intake(intake: Intake, allowed: bool) -> Markup:
    dismiss = send_button("Dismiss", {"dismiss": intake.id}) if allowed else Markup("")
    if intake.state == "checking":
        head = Markup('<span>Checking every row of <b>{}</b> ({})</span><span data-since="{}"></span>').format(
            intake.name, byte_size(intake.bytes) if intake.bytes else "from the hub", f"{intake.since:.0f}"
        )
        return Markup('<li class="checking"><header>{}</header>{}</li>').format(
            head, bar(None, label="checking", classes="wide")
        )
    if intake.state == "refused":
        template = '<li class="refused"><header><span>Could not import <b class="bad">{}</b>.</span>{}</header>{}</li>'
        return Markup(template).format(intake.name, dismiss, issues_html(intake.problems))  # noqa: S704 escaped by format
    links = Markup(" and ").join(Markup('<a href="/dataset?id={}">{}</a>').format(*added) for added in intake.added)
    values = dict(zip(("data", "validation_data"), (added[0] for added in intake.added), strict=False))
    use = use_link(values if intake.paired else {"data": intake.added[0][0]}, "button small")
    return Markup('<li class="done"><header><span>Imported {}.</span><span>{} {}</span></header></li>').format(
        links, use, dismiss
    )


def removal_html(item: Dataset, users: Sequence[DatasetUse]) -> Markup:
    """The question before a data set is removed, with the runs that use it."""
    head = Markup("<h2>Remove {}?</h2>").format(item.name)
    active = [user for user in users if user.needs_it]
    if active:
        return head + Markup("<p>In use by {}. Stop these runs first.</p>").format(_named(active))
    if users:
        return head + Markup(
            "<p>Used by {}. These runs keep their settings and results, but cannot be resumed; a clone needs other data.</p>"
        ).format(_named(users))
    return head + Markup("<p>No run uses it. Lathe deletes its copy; your own file is not changed.</p>")


def refusal_html(heading: str, reason: str) -> Markup:
    """Why a data set cannot be removed."""
    return Markup("<h2>{}</h2><p>{}</p>").format(heading, reason)


def _named(users: Sequence[DatasetUse]) -> Markup:
    shown = Markup(", ").join(Markup('<a href="/run?id={}">{}</a>').format(user.id, user.name) for user in users[:5])
    return shown + (f" and {len(users) - 5} more" if len(users) > 5 else "")
