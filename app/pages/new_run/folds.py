"""The form's parts: the basic settings, the search over all settings, and the groups, folded with a line on what they change.

static/new-run.js opens, searches and explains in the browser.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import gradio as gr
from markupsafe import Markup

from app.format import numbers
from app.pages.common import form
from app.pages.common.html import HTML, each, html
from training.config.applies import APPLIES, Values
from training.config.choices import Group
from training.config.data_sets import FIELDS
from training.config.fields import ELSEWHERE, Setting, settings

_NAMED = 5  # changed settings that a folded group's line names


def basic() -> list[Setting]:
    """The settings that are shown first, in their order."""
    return sorted((setting for setting in settings().values() if setting.basic), key=lambda setting: setting.basic)


def members(group: Group, *, advanced: bool) -> list[Setting]:
    """The settings of a folded group: all but the basic ones."""
    inside = [setting for setting in settings().values() if setting.group is group and not setting.basic]
    return [setting for setting in inside if setting.advanced is advanced]


def build_group(group: Group, choosers: Mapping[str, form.Chooser]) -> dict[str, form.Component]:
    """The components of a group, the advanced ones below the others."""
    simple, advanced = members(group, advanced=False), members(group, advanced=True)
    return form.build(simple, choosers) | form.build(advanced, choosers)


@contextmanager
def folded(group: Group) -> Iterator[None]:
    """A group below a button that opens it."""
    labels = ", ".join(item.label for item in [*members(group, advanced=False), *members(group, advanced=True)])
    head = Markup(
        '<h2><button type="button" class="fold" aria-expanded="false"><b>{}</b>'
        '<span class="differs"></span><span class="holds">{}</span></button></h2>'
    )
    with gr.Column(elem_classes="card group foldable", elem_id=_id(group)):
        html(head.format(group.value, labels))
        yield


def search_box() -> Markup:
    """The search over all settings, with what it searches; it needs no request."""
    box = Markup(
        '<span class="find" data-index="{}"><input type="search" autocomplete="off" spellcheck="false" id="find-setting" '
        'placeholder="Search all {} settings" aria-label="Search all settings" aria-describedby="find-result">'
        '<kbd title="Press / to search">/</kbd></span>'
    )
    return box.format(json.dumps(index(), ensure_ascii=False, separators=(",", ":")), len(settings()))


def changes_box() -> HTML:
    """The lines of the folded groups, which the script moves to their headings."""
    return html(changes_html(form.defaults()), script="lathe.newRun(element, watch)", classes="changes")


def changes_html(values: Values) -> Markup:
    """For each group how many of its settings differ from their defaults, and which."""
    changed = form.changed(values)
    lines = []
    for group in Group:
        inside = [*members(group, advanced=False), *members(group, advanced=True)]
        words = [_words(item, changed[item.name]) for item in inside if item.name in changed]
        more = [f"{len(words) - _NAMED} more"] if len(words) > _NAMED else []
        line = f"{numbers.count(len(words))} changed: {', '.join([*words[:_NAMED], *more])}" if words else ""
        lines.append((_id(group), line))
    return each('<p data-group="{}">{}</p>', lines)


def index() -> dict[str, dict[str, object]]:
    """What the browser knows of each setting: label, group, help, other programs' names, choices, when it applies."""
    elsewhere: dict[str, list[str]] = {}
    for other, name in ELSEWHERE.items():
        elsewhere.setdefault(name, []).append(other)
    return {
        name: {
            "label": setting.label,
            "group": "" if setting.basic else _id(setting.group),
            "help": form.in_full(setting),
            "elsewhere": " ".join(elsewhere.get(name, [])),
            "choices": list(zip(setting.choices, setting.choice_labels, setting.choice_sentences, strict=True)),
            "applies": APPLIES[name].words if name in APPLIES else "",
        }
        for name, setting in settings().items()
    }


def _words(setting: Setting, value: object) -> str:
    if setting.kind == "boolean":
        return setting.label if value else f"no {setting.label}"
    if setting.name in FIELDS:
        return setting.label  # its value is an id, a path or a list of them
    return f"{setting.label} {numbers.shorten(setting.in_words(value), 30) or 'empty'}"


def _id(group: Group) -> str:
    return f"group-{group.name.lower()}"
