"""The part "Held-out answers" of the page Compare: each run against the first one, on the same rows. Pure."""

from collections.abc import Sequence

from markupsafe import Markup

from app.documents.comparison.document import Comparison
from app.documents.comparison.paired import Against
from app.pages.common.html import each, panel, table
from app.pages.compare.html import swatch
from app.words.evaluations import label
from training.scoring.paired import Paired, Verdict
from training.scoring.words import in_words

_CLASSES = {Verdict.BETTER: "good", Verdict.WORSE: "bad", Verdict.NONE: "none"}
_NOTE = "Paired by row. A difference is called better or worse where its 95% interval excludes 0."


def against(comparison: Comparison) -> Markup:
    """A row for each run after the first one and a column for each score; nothing if no two runs answered held-out rows."""
    if not comparison.against:
        return Markup("")
    names = list(dict.fromkeys(name for found in comparison.against for name in found.scores))
    places = {run.id: (place, run.name) for place, run in enumerate(comparison.runs)}
    heads = each("<th>{}</th>", [("Run",), *[(label(name),) for name in names]])
    body = Markup("").join(_row(found, names, *places[found.run_id]) for found in comparison.against)
    first = Markup('<span class="note">against {}<bdi>{}</bdi></span>').format(swatch(0), comparison.runs[0].name)
    note = Markup('<p class="note">{}</p>').format(_NOTE)
    return panel("Held-out answers", table("compared against", heads, body) + note, aside=first)


def _row(found: Against, names: Sequence[str], place: int, name: str) -> Markup:
    cells = each("{}", [(_cell(found.scores.get(score)),) for score in names])
    if not found.scores:
        cells = Markup('<td class="note" colspan="{}">{}</td>').format(max(len(names), 1), found.reason)
    head = Markup('<th class="run-name" scope="row"><span>{}<bdi>{}</bdi></span></th>')
    return Markup("<tr>{}{}</tr>").format(head.format(swatch(place), name), cells)


def _cell(shown: Paired | None) -> Markup:
    if shown is None:
        return Markup("<td></td>")
    return Markup('<td class="shown {}">{}</td>').format(_CLASSES[shown.verdict], in_words(shown))
