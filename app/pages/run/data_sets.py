"""Several data sets of a run as a table: what each gives to an epoch, and its losses. Pure."""

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from app.pages.common.html import each, panel, table
from app.words import numbers
from training.run_folder.events import LOSS_OF
from training.units import NONE
from worker.store.tables import Run

_HEADS = (
    ("Rows", "Training rows of the data set"),
    ("Of rows", "Share of the rows of an epoch"),
    ("Of tokens", "Share of the tokens of an epoch"),
    ("Held out", "Rows held out for evaluation"),
    ("Loss", "Latest training loss on this data set"),
    ("Eval loss", "Latest evaluation loss on this data set"),
)


def data_sets(run: Run, latest: Mapping[str, float | None]) -> Markup:
    """The table; nothing for a run on one data set. `latest` are the newest values of the run's metrics."""
    plan = run.plan or {}
    training = {one["name"]: one for one in plan.get("sets") or ()}
    held_out = {one["name"]: one["rows"] for one in plan.get("eval_sets") or ()}
    names = list(dict.fromkeys([*training, *held_out]))
    if not names:
        return Markup("")
    totals = {key: sum(one[key] for one in training.values()) or 1 for key in ("epoch_rows", "epoch_tokens")}
    heads = Markup("<th>Data set</th>") + each(
        '<th class="number" title="{}">{}</th>', [(help, head) for head, help in _HEADS]
    )
    body = each(
        "<tr>{}</tr>", [(_row(name, training.get(name), held_out.get(name), totals, latest),) for name in names]
    )
    return panel("Data sets", table("mix", heads, body))


def _row(
    name: str,
    one: dict[str, Any] | None,
    held_out: int | None,
    totals: dict[str, int],
    latest: Mapping[str, float | None],
) -> Markup:
    shares = [numbers.percent(one[key] / total) if one else NONE for key, total in totals.items()]
    cells = (
        numbers.count(one["rows"] if one else None),
        *shares,
        numbers.count(held_out),
        numbers.decimal(latest.get(f"{LOSS_OF}{name}")),
        numbers.decimal(latest.get(f"eval_{LOSS_OF}{name}")),
    )
    return Markup('<td class="clip" title="{0}">{0}</td>').format(name) + each(
        '<td class="number">{}</td>', [(cell,) for cell in cells]
    )
