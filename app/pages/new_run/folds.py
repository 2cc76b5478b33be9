"""The form's parts: the basic settings, the search over all settings, and the groups, folded with a line on what they change.

static/new-run.js opens, searches and explains in the browser.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import gradio as gr
from markupsafe import Markup

from app.format import numbers
from app.format.setting_text import in_full, label, value_in_words
from app.pages.common import form
from app.pages.common.html import HTML, html
from app.texts import _
from app.web.gradio_texts import made
from app.web.templating import Macros
from training.config.applies import APPLIES, Values
from training.config.choices import Group
from training.config.data_sets import FIELDS
from training.config.fields import ELSEWHERE, Setting, settings

_HTML = Macros("new_run/folds.html")
_NAMED = 5  # changed settings that a folded group's line names


def basic() -> list[Setting]:
    """The settings that are shown first, in their order."""
    return sorted((setting for setting in settings().values() if setting.basic), key=lambda setting: setting.basic)


def members(group: Group) -> list[Setting]:
    """The settings of a folded group: all but the basic ones, the advanced ones last."""
    inside = [setting for setting in settings().values() if setting.group is group and not setting.basic]
    return sorted(inside, key=lambda setting: setting.advanced)


def build_group(
    group: Group, choosers: Mapping[str, form.Chooser], *, advanced: bool = False
) -> dict[str, form.Component]:
    """The components of a group: the advanced ones, or the others, which are above them."""
    return form.build([item for item in members(group) if item.advanced is advanced], choosers)


@contextmanager
def folded(group: Group) -> Iterator[None]:
    """A group below a button that opens it."""
    with gr.Column(elem_classes="card group foldable", elem_id=_id(group)):
        html(made(lambda: _HTML.head(_(group.value), [label(item.name) for item in members(group)])))
        yield


def title_html() -> Markup:
    """The heading, with the search over all settings and what it searches: it needs no request."""
    return _HTML.title(json.dumps(index(), ensure_ascii=False, separators=(",", ":")), len(settings()))


def one_device() -> Markup:
    """The place of the strategy while there is one device (static/new-run.js)."""
    return _HTML.one_device()


def changes_box() -> HTML:
    """The lines of the folded groups, which the script moves to their headings."""
    return html(changes_html(form.defaults()), script="lathe.newRun(element, trigger, watch)", classes="changes")


def changes_html(values: Values) -> Markup:
    """For each group how many of its settings differ from their defaults, and which."""
    changed = form.changed(values)
    lines = []
    for group in Group:
        words = [_words(item, changed[item.name]) for item in members(group) if item.name in changed]
        line = _("{number} changed: {settings}").format(number=len(words), settings=_listed(words))
        lines.append((_id(group), line if words else ""))
    return _HTML.changes(lines)


def changes_line(values: Values) -> str:
    """The settings that differ from their defaults, the first of them by name; empty if none do."""
    return _listed([_words(settings()[name], value) for name, value in form.changed(values).items()])


def _listed(words: list[str]) -> str:
    more = [_("{number} more").format(number=len(words) - _NAMED)] if len(words) > _NAMED else []
    return ", ".join([*words[:_NAMED], *more])


def index() -> dict[str, dict[str, object]]:
    """What the browser knows of each setting: label, group, help, other programs' names, choices, when it applies."""
    elsewhere: dict[str, list[str]] = {}
    for other, name in ELSEWHERE.items():
        elsewhere.setdefault(name, []).append(other)
    return {
        name: {
            "label": label(name),
            "group": "" if setting.basic else _id(setting.group),
            "help": in_full(setting),
            "elsewhere": " ".join(elsewhere.get(name, [])),
            "choices": list(
                zip(setting.choices, map(_, setting.choice_labels), map(_, setting.choice_sentences), strict=True)
            ),
            "applies": _(APPLIES[name].words) if name in APPLIES else "",
        }
        for name, setting in settings().items()
    }


def _words(setting: Setting, value: object) -> str:
    name = label(setting.name)
    if setting.kind == "boolean":
        return name if value else _("no {setting}").format(setting=name)
    if setting.name in FIELDS:
        return name  # its value is an id, a path or a list of them
    shown = numbers.shorten(value_in_words(setting.name, value), 30) or _("empty")
    return f"{name} {shown}"


def _id(group: Group) -> str:
    return f"group-{group.name.lower()}"
