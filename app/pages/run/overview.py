"""Settings, results and data sets of a run as labels and texts, for the page Run. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.format import numbers
from app.format.dataset_text import data_words, digest_label
from app.format.run_text import change, exact_match, result_noun, scores, strategy
from app.format.setting_text import value_in_words
from app.pages.common.form import applying, from_config
from app.texts import _, gettext_noop
from training.config.data_sets import FIELDS
from training.config.fields import settings
from training.run_folder.evaluated import REWARD, evaluated
from training.run_folder.events import LOSS_OF, Failed, OutOfMemory
from training.units import NONE, byte_size
from worker.store.tables import Run, RunEvent, Status

Pair = tuple[str, str]
_FAILED = (Status.FAILED.value, Status.DIVERGED.value)
_MOMENTS = (gettext_noop("before"), gettext_noop("after"), gettext_noop("peak"), gettext_noop("reserved"))


def without_repeats(events: Sequence[RunEvent], *, explained: bool) -> list[tuple[RunEvent, str]]:
    """The events with their texts, each phase of an attempt once: training and evaluation alternate during the whole run.

    `explained`: the page says elsewhere why the last attempt failed, so that the events only say that it did.
    """
    first = {(event.attempt, event.message): event.id for event in reversed(events) if event.kind == "phase"}
    shown = [event for event in events if event.kind != "phase" or first[event.attempt, event.message] == event.id]
    if not explained or not (ends := [event for event in shown if event.kind in _FAILED]):
        return [(event, _text(event)) for event in shown]
    last = ends[-1]
    return [
        (event, _(event.kind).capitalize() if event is last else _text(event))
        for event in shown
        if event is last or event.attempt != last.attempt or event.kind not in (OutOfMemory.kind, Failed.kind)
    ]


def _text(event: RunEvent) -> str:
    return _(event.message) if event.kind == "phase" else event.message


def configuration(run: Run, dataset_names: dict[str, str]) -> dict[str, Any]:
    """Settings that differ from their defaults (label, text, raw value), the others that have an effect, and digests of data."""
    values, known = applying(from_config(run.config)), settings()
    changed = [name for name in values if known[name].required or run.config.get(name) != _default(name)]
    texts = {
        name: data_words(values[name], dataset_names) if name in FIELDS else _value(name, values[name])
        for name in changed
    }
    return {
        "changed": [(_(known[name].label), texts[name], values[name]) for name in changed],
        "usual": [(_(known[name].label), _value(name, value)) for name, value in values.items() if name not in changed],
        "digests": [
            (f"{digest_label(name, _(known[name.partition(' ')[0]].label))}, SHA-256", digest)
            for name, digest in run.fingerprints.items()
        ],
    }


def results(run: Run) -> list[tuple[str, str, str]]:
    """The run's final metrics, each with what is shown of a difference; before its end, what it has reported about itself."""
    summary = run.summary
    if not summary:
        return [] if run.status.ended else [(*pair, "") for pair in _plan(run.plan) if pair[1] not in (NONE, "0")]
    task = run.config.get("task")
    (measure, value), (_same, final) = (
        evaluated(task, summary.get("eval_loss")),
        evaluated(task, summary.get("final_loss")),
    )
    pairs = [
        (_("Final reward") if measure == REWARD else _("Final loss"), numbers.decimal(final)),
        (_("Evaluation reward") if measure == REWARD else _("Evaluation loss"), numbers.decimal(value)),
        (_("Perplexity, held-out"), numbers.decimal(summary.get("eval_perplexity"))),
        (_("Trainable parameters"), _trainable(summary)),
        (numbers.capitalized(_(result_noun(run.config))), byte_size(summary.get("adapter_bytes"))),
        (
            _("Mean speed"),
            ", ".join(
                numbers.rate(summary.get(f"{noun}_per_second"), _(noun))
                for noun in (gettext_noop("tokens"), gettext_noop("samples"))
            ),
        ),
        (_("Training time"), numbers.duration(summary.get("train_seconds"))),
        (_("Energy of the GPUs"), numbers.energy(summary.get("energy_joules"))),
        (_("Engine"), strategy({"summary": summary, "plan": run.plan})),
        (_("Attempts"), numbers.count(run.attempt)),
    ]
    return _scores(summary.get("answers")) + [(*pair, "") for pair in pairs if pair[1] != NONE]


def memory(run: Run) -> list[list[str]]:
    """The memory of each rank as a table, the first row of which is the heading; empty without measurements."""
    measured = (run.summary or {}).get("memory") or {}
    moments = [(moment, measured.get(f"{moment}_bytes") or []) for moment in _MOMENTS]
    moments = [(moment, sizes) for moment, sizes in moments if sizes]
    ranks = max((len(sizes) for name, sizes in moments), default=0)
    if ranks and run.forecast:
        moments.append((gettext_noop("forecast"), [run.forecast["allocated_bytes"]] * ranks))
    rows = [
        [
            _("rank {rank}").format(rank=rank),
            *(byte_size(sizes[rank] if rank < len(sizes) else None) for name, sizes in moments),
        ]
        for rank in range(ranks)
    ]
    return [[_("Memory"), *(_(moment) for moment, sizes in moments)], *rows] if ranks else []


def data_sets(run: Run, latest: Mapping[str, float | None]) -> list[list[str]]:
    """The data sets of a run on several, each with its shares and losses. `latest` are the newest values of its metrics."""
    plan = run.plan or {}
    training = {one["name"]: one for one in plan.get("sets") or ()}
    held_out = {one["name"]: one["rows"] for one in plan.get("eval_sets") or ()}
    totals = {key: sum(one[key] for one in training.values()) or 1 for key in ("epoch_rows", "epoch_tokens")}
    return [
        [
            name,
            numbers.count(training[name]["rows"] if name in training else None),
            *(
                numbers.percent(training[name][key] / total) if name in training else NONE
                for key, total in totals.items()
            ),
            numbers.count(held_out.get(name)),
            numbers.decimal(latest.get(f"{LOSS_OF}{name}")),
            numbers.decimal(latest.get(f"eval_{LOSS_OF}{name}")),
        ]
        for name in dict.fromkeys([*training, *held_out])
    ]


def _scores(answers: dict[str, Any] | None) -> list[tuple[str, str, str]]:
    """The scores of held-out answers before and after, each with whether a difference is shown."""
    if not answers:
        return []
    listed = [("exact_match", _("exact match"), exact_match(answers)), *scores(answers)]
    return [
        (_("{score}, held-out").format(score=f"{label[0].upper()}{label[1:]}"), text, change(answers, name) or "")
        for name, label, text in listed
    ]


def _plan(plan: dict[str, Any] | None) -> list[Pair]:
    if not plan:
        return []
    total = plan.get("total_parameters")
    share = {"trainable_percent": 100 * plan["trainable_parameters"] / total} if total else {}
    return [
        (_("Trainable parameters"), _trainable(plan | share)),
        (_("Engine"), strategy({"summary": None, "plan": plan})),
        (_("Training rows"), numbers.count(plan.get("train_rows"))),
        (_("Evaluation rows"), numbers.count(plan.get("eval_rows"))),
        (_("Truncated rows"), numbers.count(plan.get("truncated_rows"))),
        (_("Skipped rows"), numbers.count(plan.get("skipped_rows"))),
        (_("Target modules"), ", ".join(plan.get("target_modules") or []) or NONE),
    ]


def _trainable(values: dict[str, Any]) -> str:
    percent = values.get("trainable_percent")
    share = f" ({percent:.4g}%)" if percent is not None else ""
    trainable, total = numbers.count(values.get("trainable_parameters")), numbers.count(values.get("total_parameters"))
    return _("{count} of {total}").format(count=trainable, total=total) + share


def _default(name: str) -> Any:
    default = settings()[name].default
    return getattr(default, "value", default)


def _value(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    return value_in_words(name, value) or _("none")
