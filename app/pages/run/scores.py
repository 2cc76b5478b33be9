"""The evaluations of a run on its page: what they can be of, their scores, and the answers of one, compared with another."""

from typing import Any

from starlette.datastructures import QueryParams

from app.access.dataset_imports import samples
from app.documents.results import evaluated_rows
from app.documents.results import evaluations as documents
from app.documents.results import suites as suite_documents
from app.format import evaluation_text as words
from app.format import suite_text
from app.format.numbers import capitalized
from app.pages.run.answers import paged
from app.texts import _, gettext_noop
from training.config.task import traits_of
from training.run_folder import checkpoints
from training.run_folder.paths import checkpoints_dir, saved_result
from training.scoring.request import ACCURACY, BASE, BUILT_IN, RESULT
from worker.datasets import datasets
from worker.settings import get_settings
from worker.store import database, evaluations
from worker.store.tables import Evaluation, Run

_REWARDS = ("contains", "number_equal", "json_valid", "json_fields", "boxed", "tool_call")
ORDERS = {
    "row": gettext_noop("Row"),
    "lowest": gettext_noop("Lowest score first"),
    "highest": gettext_noop("Highest score first"),
    "worse": gettext_noop("Most worse first"),
    "better": gettext_noop("Most better first"),
}


def shown(run: Run, query: QueryParams) -> dict[str, Any]:
    """The evaluations of an ended run, and the rows of the one that the query names."""
    if not run.status.ended:
        return {"evaluations": [], "evaluating": False, "evaluation": None, "evaluation_form": None, "suites": []}
    with database.read() as session:
        listed = documents.listing(session, run.id).model_dump(mode="json")["evaluations"]
        items = evaluations.of_run(session=session, run_id=run.id)
        data = [(item.id, item.name) for item in datasets.listing(session=session)]
        suites = [suite.model_dump(mode="json") for suite in suite_documents.of_items(session, items).values()]
    chosen = next((item for item in items if item.id == query.get("evaluation")), None)
    return {
        "evaluations": listed,
        "evaluating": any(not item.status.ended for item in items),
        "evaluation": chosen and _rows(chosen, items, query),
        "evaluation_form": {
            "data": data + [(str(path), _("Starter sample: {name}").format(name=path.name)) for path in samples()],
            "sources": sources(run),
            "metrics": metrics(run),
        },
        "evaluation_words": words,
        "suites": suites,
        "suite_words": suite_text,
    }


def sources(run: Run) -> list[tuple[str, str]]:
    """The weights that can be evaluated: the result, the checkpoints on this machine, the model before training."""
    run_dir = get_settings().runs_dir / run.id
    kept = checkpoints.sealed(run_dir) if checkpoints_dir(run_dir).is_dir() else []
    result = [(RESULT, capitalized(words.source({"source": RESULT})))] if saved_result(run_dir) else []
    return [*result, *((path.name, path.name) for path in kept), (BASE, _("Before training"))]


def metrics(run: Run) -> list[tuple[str, str]]:
    """The built-in metrics of the run's task, and rewards that need no options; the first two are the default."""
    names = (ACCURACY,) if traits_of(run.config).has_classes else (*BUILT_IN, *_REWARDS)
    return [(name, words.label(name)) for name in names]


def _rows(item: Evaluation, items: list[Evaluation], query: QueryParams) -> dict[str, Any]:
    """A page of the answers of an evaluation, beside those of another one, sorted by a metric or by its difference."""
    others = [one for one in items if one.id != item.id and one.summary and one.asked.sha256 == item.asked.sha256]
    usual, names = documents.baseline(item, items), list((item.summary or {}).get("metrics") or {})
    against_id = query.get("against", usual.id if usual else "")
    against = next((one for one in others if one.id == against_id), None)
    metric = query.get("metric", "") if query.get("metric") in names else next(iter(names), "")
    order = query.get("order", "row")
    rows = evaluated_rows.rows(item, against, metric, order)
    scores = list(rows.scores)
    compared = (_("Difference"), _("Prompt"), _("Expected"), _("Other answer"), _("Answer"))
    return paged(rows, query.get("rows_page", "")) | {
        "id": item.id,
        "against": against.id if against else "",
        "others": [(one.id, f"{one.id}: {words.source(one.request)}") for one in others],
        "metric": metric,
        "metrics": [(name, words.label(name)) for name in names],
        "order": order,
        "orders": [(name, _(label)) for name, label in ORDERS.items()],
        "scores": scores,
        "heads": [
            _("Row"),
            *map(words.label, scores),
            *(compared if against else (_("Prompt"), _("Expected"), _("Answer"))),
        ],
    }
