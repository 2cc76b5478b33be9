"""What the form of New run shows when it is opened: a draft, the clone of a run, or the settings of a link. No components."""

from typing import Any

from markupsafe import Markup

from app.access import users
from app.format.setting_text import label
from app.pages.common import form
from app.pages.common.form import Draft
from app.pages.common.html import banner_html, database_unreachable
from app.pages.new_run import folds
from app.texts import _
from app.web.templating import PARTS, filled
from worker.store import database, runs
from worker.store.database import UNREACHABLE
from worker.store.runs import RunNotFound


def kept_or_fresh(stored: Any) -> Draft:
    """The draft that the browser stored; if it has none, a fresh one."""
    return Draft.of(stored) if isinstance(stored, dict) and isinstance(stored.get("values"), dict) else fresh()


def fresh() -> Draft:
    """The defaults with the model that the user has chosen on Settings."""
    try:
        model = users.own_preferences().model
    except UNREACHABLE:
        model = ""
    return Draft(form.defaults() | ({"model": model} if model else {}))


def draft_or_clone(draft: Draft, clone: str) -> tuple[Draft, Markup | str]:
    """The form's content and a banner: the run to clone, unless the draft is already an edited clone of it."""
    if not clone:
        return Draft(draft.values), ""
    try:
        with database.read() as session:
            run = runs.get(session=session, run_id=clone)
    except UNREACHABLE:
        return draft, database_unreachable()
    except RunNotFound as error:
        return draft, PARTS.alert(_("Could not clone the run."), str(error))
    banner = banner_html(_("Cloned from {run}. Edit any setting, then press Start."), run)
    return (draft if draft.parent == run.id else Draft(form.from_config(run.config), run.id)), banner


def restored(draft: Draft) -> Markup | str:
    """That the settings which the browser kept are back; nothing if they are those of a fresh form."""
    line = folds.changes_line(draft.values)
    return filled("new_run/restored.html", settings=line) if line and draft.values != fresh().values else ""


def from_link(given: dict[str, Any], draft: Draft) -> Markup:
    """What the link set, and the way back to a draft that differs from the defaults."""
    names = ", ".join(label(name) for name in given)
    return filled("new_run/linked.html", settings=names, has_draft=draft.values != form.defaults())
