"""The three steps of New run (Data, Model, Check and start), each with a tick or its own problems. No components."""

from collections.abc import Sequence

from markupsafe import Markup

from app.format import numbers
from app.format.setting_text import label, listed
from app.pages.new_run.review import STEPS, Review
from app.texts import _, gettext_noop
from app.web.templating import TEMPLATES, Macros, filled
from training.config.data_sets import FIELDS
from training.data.row_formats import UNKNOWN_FIX
from training.errors import Problem

TEMPLATES.globals["setting_label"] = label
_HTML = Macros("new_run/steps.html")
_NAMES = {
    "data": (1, gettext_noop("Data"), gettext_noop("Choose a data set, or upload a file.")),
    "model": (2, gettext_noop("Model"), gettext_noop("Choose a model.")),
}
"""Number and name of the steps before the last one, and what to do while nothing is chosen."""
_LAST = 3, gettext_noop("Check and start")


def steps_html(checked: Review, refused: Sequence[Problem] = ()) -> list[Markup]:
    """The heads of the first two steps with their problems, the problems of the last one, and the line beside Start on a phone.

    `refused` are problems found on Start.
    """
    problems = _all(checked, refused)
    heads = [_head(name, [problem for problem in problems if problem.field in STEPS[name]]) for name in STEPS]
    count = len(problems) + sum(conflict.blocking for conflict in checked.conflicts)
    in_steps = [problem.field for name in STEPS for problem in problems if problem.field in STEPS[name]]
    first = next(iter([*in_steps, *(problem.field for problem in problems)]), "")
    return [*heads, problems_html(checked, refused), _HTML.bar(count, first)]


def opening_html(name: str) -> Markup:
    """The head of a step before anything is checked."""
    return _head(name, None)


def last_head() -> Markup:
    """The head of the last step; whether it is done, the style sheet sees from what follows."""
    number, name = _LAST
    return _HTML.last(number, _(name))


def problems_html(checked: Review, refused: Sequence[Problem] = ()) -> Markup:
    """What is to do before Start, with the problems and the advice that belong to no other step, each with its fix."""
    problems = _all(checked, refused)
    elsewhere = {field for fields in STEPS.values() for field in fields}
    return filled(
        "new_run/problems.html",
        lead=_lead(checked, problems),
        problems=[problem for problem in problems if problem.field not in elsewhere],
        has_any=bool(problems),
        conflicts=checked.conflicts,
        misfit=checked.misfit,
    )


def _all(checked: Review, refused: Sequence[Problem]) -> list[Problem]:
    return [*checked.problems, *(problem for problem in refused if problem not in checked.problems)]


def _head(step: str, problems: Sequence[Problem] | None) -> Markup:
    number, name, to_do = _NAMES[step]
    wrong = [problem for problem in problems or [] if not _is_missing(problem)]
    unlisted = [problem for problem in wrong if _is_mapped_below(problem)]
    says = _("Choose the columns that the model learns from, below.") if unlisted else ""
    if problems and not wrong:
        says = _(to_do)
    state = "" if problems is None else "wrong" if wrong else "open" if problems else "done"
    return _HTML.head(number, _(name), state, says, [problem for problem in wrong if problem not in unlisted])


def _lead(checked: Review, problems: Sequence[Problem]) -> str:
    missing = [problem.field for problem in problems if _is_missing(problem)]
    others = len(problems) - len(missing) + sum(conflict.blocking for conflict in checked.conflicts)
    sentences = [_("To start, choose: {settings}.").format(settings=listed(missing))] if missing else []
    if others:
        sentences.append(_("Fix {problems} to start.").format(problems=numbers.plural(others, "problem", "problems")))
    if not sentences and checked.misfit:
        return _("Start is possible, but the run is not expected to fit in memory:")
    return " ".join(sentences) or _("Ready to start, with advice:")


def _is_missing(problem: Problem) -> bool:
    return problem.value in (None, "") and problem.message == "is missing."


def _is_mapped_below(problem: Problem) -> bool:
    """True for unknown columns of a stored data set, which are chosen below its name."""
    is_unknown = problem.fix == UNKNOWN_FIX or "columns" in (problem.changes or {})
    return problem.field in FIELDS and is_unknown and "/" not in str(problem.value)
