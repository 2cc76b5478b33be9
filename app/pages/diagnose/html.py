"""The parts of the page Diagnose as HTML: a shared diagnosis, and the recent ones. Pure functions."""

import json
from collections.abc import Sequence

from markupsafe import Markup

from app.documents.diagnoses import Recent, address
from app.pages.common.diagnosis import diagnosis_html
from app.pages.common.html import ago, each, panel, table
from app.words import numbers
from worker.runs.shared_diagnoses import SharedDiagnosis

NO_LOG = Markup(
    '<div class="empty"><h2>No log yet</h2><p>Paste the output of a training run, or upload its log file. '
    "You will see the cause, the evidence, the rank that failed first, and the fix.</p></div>"
)
_SHARE = Markup(
    '<div class="share"><button type="button" class="button" id="share" data-send="{}">Share</button><span class="note">'
    "Makes a link for everybody with access to this Lathe. It stores this diagnosis and the log, without secrets.</span></div>"
).format('{"share": true}')


def unshared_html(diagnosis: Markup) -> Markup:
    """A diagnosis with the button that shares it."""
    return diagnosis + _SHARE


def shared_html(shared: SharedDiagnosis, *, allowed: bool) -> Markup:
    """A shared diagnosis with its link and its log; `allowed` is true if the caller may delete it."""
    copy = Markup('<span>Link: <button type="button" class="button small" data-copy="{}">Copy</button></span>')
    delete = Markup(
        '<details class="confirm"><summary class="button small">Delete</summary><div>The link stops working for everybody. '
        '<button type="button" class="button small" id="delete-shared" data-send="{}">Delete it</button></div></details>'
    ).format(json.dumps({"delete": shared.id}))
    head = Markup('<div class="shared" data-address="{}"><span>Shared by <b>{}</b>, {}</span> {} {}</div>').format(
        address(shared.id),
        shared.owner,
        ago(shared.created_at),
        copy.format(address(shared.id)),
        delete if allowed else "",
    )
    lines = numbers.plural(shared.log.count("\n") + 1, "line")
    log = Markup(
        '<details class="shared-log"><summary>Log without secrets, {}</summary><pre tabindex="0">{}</pre></details>'
    )
    return head + diagnosis_html(shared.diagnosis) + log.format(lines, shared.log)


def deleted_html() -> Markup:
    """The page after a shared diagnosis was deleted."""
    return (
        Markup('<div class="banner" role="status" data-address="/diagnose">Deleted. Its link no longer works.</div>')
        + NO_LOG
    )


def recent_html(recent: Sequence[Recent]) -> Markup:
    """The latest diagnoses of failed runs and shared logs, with a link to each."""
    if not recent:
        note = Markup('<p class="note">The last failed runs and shared logs will be listed here.</p>')
        return panel("Recent diagnoses", note, classes="recent")
    lines = each(
        '<tr><td><a href="{}">{}</a></td><td>{} <code>{}</code></td><td>{}</td></tr>',
        [(one.address, one.name, one.title, one.cause, ago(one.when)) for one in recent],
    )
    return panel(
        "Recent diagnoses", table("figures recent-diagnoses", ["Run or log", "Cause", "When"], lines), classes="recent"
    )
