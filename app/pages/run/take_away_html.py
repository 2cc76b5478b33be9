"""The part "Take away" of the page Run as HTML. Pure."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from markupsafe import Markup

from app.documents.results.answers import Answer, Change, Part, differences
from app.documents.results.outputs import Output
from app.documents.results.snippets import Snippet
from app.pages.common.html import each, panel, table
from app.words.numbers import plural
from app.words.runs import difference, figures, result_noun, verdict
from training.units import NONE, byte_size
from worker.store.tables import Run

_COPY = Markup('<button type="button" class="copy" data-copy="{}" aria-label="Copy {}">Copy</button>')
_PARITY_HEADS = ("Form", "Verdict", "Compared")
_ANSWER_HEADS = ("Row", "Change", "Prompt", "Expected", "Before", "After")


def panel_of(
    run: Run,
    outputs: Sequence[Output],
    snippets: Sequence[Snippet],
    compared: dict[str, Any] | None = None,
    *,
    can_be_tried: bool = False,
) -> Markup:
    """The forms of the result as a table, how they compare with the trained model, the snippets, and the command that pushes."""
    heads = each('<th class="{}">{}</th>', [("", "Form"), ("", "For"), ("number", "Size"), ("", "Get it")])
    groups = [list(group) for _, group in groupby(outputs, key=lambda one: one.group or one.name)]
    rows = [_row(group[0]) if len(group) == 1 else _choice(group) for group in groups]
    body = each("<tr><th>{}</th><td>{}</td><td class=number>{}</td><td>{}</td></tr>", rows)
    shown = table("outputs", heads, body)
    link = Markup('<a class="button" id="try-it" href="/playground?run={}">Try it</a>').format(run.id)
    aside = link if can_be_tried else ""
    return panel("Take away", shown + _parity(run, compared) + _uses(run, snippets), classes="take-away", aside=aside)


def answer_table(answers: Sequence[Answer]) -> Markup:
    """Answers with the differing words marked."""
    if not answers:
        return Markup('<p class="note">No answer changed in this way.</p>')
    template = (
        '<tr><td class="number">{}</td><td class="change {}">{}</td><td><div class="text">{}</div></td>'
        '<td><div class="text">{}</div></td><td><div class="text">{}</div></td><td><div class="text">{}</div></td></tr>'
    )
    return table("answers", _ANSWER_HEADS, each(template, [_answer(answer) for answer in answers]))


def _choice(variants: Sequence[Output]) -> tuple[Markup | str, ...]:
    """A row for variants of one form: a list to choose from, and in each cell what belongs to the variant that is chosen."""
    group = variants[0].group
    names = [one.name.removeprefix(group).strip() or "as trained" for one in variants]
    options = each('<option value="{}">{}</option>', [(place, name) for place, name in enumerate(names)])
    choose = Markup('{} <select class="variants" aria-label="Type of {}">{}</select>').format(group, group, options)
    cells = zip(*(_row(one)[1:] for one in variants), strict=True)
    return choose, *(_variants(cell) for cell in cells)


def _variants(cell: Sequence[str | Markup]) -> Markup:
    template = '<span data-variant="{}"{}>{}</span>'
    return each(template, [(place, Markup(" hidden") if place else "", text) for place, text in enumerate(cell)])


def _row(output: Output) -> tuple[str, str, str, Markup]:
    size = NONE if output.bytes is None else byte_size(output.bytes)
    if output.address:
        get = Markup('<a class="button" href="{}" download>Download</a>').format(output.address)
    elif output.command:
        get = Markup("{} <code>{}</code>").format(_COPY.format(output.command, "the command"), output.command)
    else:
        get = Markup('<span class="faint">{}</span>').format(output.note)
    return output.name, output.purpose, size, get


def _parity(run: Run, compared: dict[str, Any] | None) -> Markup:
    """A table of the forms that were compared with the trained model."""
    if not run.has_result or not compared:
        return Markup("")
    body = each('<tr><th>{}</th><td class="parity-{}">{}</td><td>{}{}</td></tr>', [
        (name, verdict(form).split()[0], verdict(form), figures(form), _different(form))
        for name, form in compared["forms"].items()
    ])  # fmt: skip
    command = f"lathe verify {run.id}"
    note = Markup(
        '<p class="note">Compared with the trained model on {}. {} <code>{}</code> compares every form again.</p>'
    ).format(plural(compared["rows"], "row"), _COPY.format(command, "the command"), command)
    return Markup('<h3 class="uses">As trained?</h3>') + table("parity", _PARITY_HEADS, body) + note


def _different(form: dict[str, Any]) -> Markup:
    text = difference(form)
    return Markup("<br>{}").format(text) if text else Markup("")


def _uses(run: Run, snippets: Sequence[Snippet]) -> Markup:
    if not run.has_result or not snippets:
        return Markup("")
    push = Snippet(
        "Push to a hub",
        "sh",
        f"Uploads the {result_noun(run.config)} with its card to a private repository; add --public for a public one. "
        "HF_TOKEN must be set to a token with write access.",
        f"lathe push {run.id} OWNER/NAME\n",
    )
    template = (
        '<details name="snippet"><summary>{}</summary><div class="snippet"><p class="note">{}</p>{}'
        '<pre tabindex="0"><code>{}</code></pre></div></details>'
    )
    items = [
        (one.program, one.note, _COPY.format(one.text, f"the snippet for {one.program}"), one.text)
        for one in (*snippets, push)
    ]
    return Markup('<h3 class="uses">Use it in</h3>') + each(template, items)


def _answer(answer: Answer) -> tuple[str | Markup, ...]:
    before, after = differences(answer.before, answer.after)
    kind = {Change.RIGHT: "right", Change.WRONG: "wrong"}.get(answer.change, "")
    change = answer.change.value
    return (
        f"{answer.row:,}",
        kind,
        change,
        answer.prompt,
        answer.expected,
        _marked(before, "del"),
        _marked(after, "ins"),
    )


def _marked(parts: Sequence[Part], tag: str) -> Markup:
    return each("{}", [(_part(differs, text, tag),) for differs, text in parts]) or Markup('<i class="faint">empty</i>')


def _part(differs: bool, text: str, tag: str) -> Markup | str:
    marked = {"del": Markup("<del>{}</del>"), "ins": Markup("<ins>{}</ins>")}[tag]
    return marked.format(text) if differs else text
