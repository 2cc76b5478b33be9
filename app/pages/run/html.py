"""The parts of the page Run as HTML. Pure functions of database rows."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from app.pages.common.form import applying, from_config
from app.pages.common.html import ago, bar, clock, each, note_html, pairs_table, panel, status_word, table, took
from app.words import numbers
from app.words.datasets import data_words, digest_label
from app.words.runs import change, exact_match, result_noun, scores, strategy
from training.config.data_sets import FIELDS
from training.config.fields import settings
from training.run_folder.events import LOSS_OF
from training.units import NONE, byte_size
from worker.store.jobs import submitted_id
from worker.store.tables import Run, RunEvent

Queue = dict[str, Any] | None

_SET_HEADS = (
    ("Rows", "Training rows of the data set"),
    ("Of rows", "Share of the rows of an epoch"),
    ("Of tokens", "Share of the tokens of an epoch"),
    ("Held out", "Rows held out for evaluation"),
    ("Loss", "Latest training loss on this data set"),
    ("Eval loss", "Latest evaluation loss on this data set"),
)


def heading(run: Run) -> Markup:
    """Name, status, id, origin and owner."""
    aside: list[Any] = [Markup('<span class="mono">{}</span>').format(run.id)]
    if run.parent_id:
        aside.append(
            Markup('cloned from <a href="/run?id={}" class="mono">{}</a>').format(run.parent_id, run.parent_id)
        )
    if run.attempt > 1:
        aside.append(f"attempt {run.attempt}")
    if run.job and (job_id := submitted_id(run)):
        nodes = f" on {run.job['nodes']}" if run.job.get("nodes") else ""
        aside.append(f"Slurm job {job_id}{nodes}")
    aside.append(Markup("queued by {} {}").format(run.owner, ago(run.queued_at)))
    return Markup('<div class="run-title"><h1 title="{}">{}</h1><p>{} {}</p></div>').format(
        run.name, run.name, status_word(run.status, run.request, differs=run.differs), Markup(" · ").join(aside)
    )


def progress(run: Run, facts: dict[str, Any], cursor: str) -> Markup:
    """Phase, progress bar, and the facts that the run's stream keeps current (static/run.js)."""
    left = Markup('<span data-until="{}"></span>').format(facts["until"]) if facts["until"] else NONE
    cells = [
        ("Step", "step", facts["step"]),
        ("Loss", "loss", facts["loss"]),
        ("Speed", "speed", facts["speed"]),
        ("Time left", "until", left),
        ("Duration" if run.status.ended else "Elapsed", "elapsed", took(run)),
        ("Peak memory", "memory", facts["memory"]),
        ("Devices", "devices", Markup('<span title="{0}">{0}</span>').format(", ".join(run.devices) or NONE)),
    ]
    listed = each('<div><dt>{}</dt><dd data-fact="{}">{}</dd></div>', cells)
    line = bar(facts["share"], label="progress", classes=f"wide {run.status.value}")
    return Markup(
        '<section class="panel standing" data-state="{}" data-cursor="{}" data-live="{}">'
        '<p class="standing-phase"><span data-fact="phase">{}</span><span class="connection" role="status"></span></p>{}'
        '<dl class="facts live-facts">{}</dl></section>'
    ).format(facts["state"], cursor, "" if run.status.ended else "yes", facts["phase"], line, listed)


def event_list(events: Sequence[RunEvent]) -> Markup:
    """The events, newest first."""
    items = each(
        '<li class="{} {}" data-id="{}">{}<span>{}</span></li>',
        [
            (event.level, event.kind, event.id, clock(event.time), event.message)
            for event in reversed(_without_repeats(events))
        ],
    )
    return panel("Events", Markup('<ol class="events">{}</ol>').format(items) if items else note_html("No events yet."))


def configuration(run: Run, dataset_names: dict[str, str]) -> Markup:
    """The settings that differ from their defaults; the others that have an effect are folded away."""
    values = applying(from_config(run.config))
    known = settings()
    changed = [name for name in values if known[name].required or run.config.get(name) != _default(name)]
    texts = {
        name: data_words(values[name], dataset_names) if name in FIELDS else _value(name, values[name])
        for name in changed
    }
    pairs = [(known[name].label, Markup('<b title="{}">{}</b>').format(values[name], texts[name])) for name in changed]
    usual = [(known[name].label, _value(name, value)) for name, value in values.items() if name not in changed]
    folded = Markup("<details><summary>{} at default</summary>{}</details>").format(
        numbers.plural(len(usual), "setting"), pairs_table(usual)
    )
    digest = Markup('<span class="mono" title="{}">{}…</span>')
    pairs += [
        (f"{digest_label(name, known[name.partition(' ')[0]].label)}, SHA-256", digest.format(sha, sha[:16]))
        for name, sha in run.fingerprints.items()
    ]
    return panel("Configuration", pairs_table(pairs) + folded)


def results(run: Run) -> Markup:
    """The run's final metrics; before its end, what it has reported about itself."""
    summary = run.summary
    if not summary:
        return Markup("") if run.status.ended else _plan(run)
    pairs = [
        *_scores(summary.get("answers")),
        ("Final loss", numbers.decimal(summary.get("final_loss"))),
        ("Evaluation loss", numbers.decimal(summary.get("eval_loss"))),
        ("Perplexity, held-out", numbers.decimal(summary.get("eval_perplexity"))),
        ("Trainable parameters", _trainable(summary)),
        (result_noun(run.config).capitalize(), byte_size(summary.get("adapter_bytes"))),
        ("Speed", ", ".join(numbers.rate(summary.get(f"{noun}_per_second"), noun) for noun in ("tokens", "samples"))),
        ("Training time", numbers.duration(summary.get("train_seconds"))),
        ("Energy of the GPUs", numbers.energy(summary.get("energy_joules"))),
        ("Engine", strategy({"summary": summary, "plan": run.plan})),
        ("Attempts", numbers.count(run.attempt)),
    ]
    shown = pairs_table([pair for pair in pairs if pair[1] != NONE])
    return panel("Results", shown + _memory(summary.get("memory") or {}, run.forecast))


def _scores(answers: dict[str, Any] | None) -> list[tuple[str, Any]]:
    """The scores of held-out answers before and after, each with whether a difference is shown."""
    listed = [("exact_match", "exact match", exact_match(answers)), *scores(answers)]
    template = Markup('{}<span class="verdict">{}</span>')
    return [
        (
            f"{label[0].upper()}{label[1:]}, held-out",
            template.format(text, shown) if (shown := change(answers, name)) else text,
        )
        for name, label, text in listed
    ]


def _without_repeats(events: Sequence[RunEvent]) -> list[RunEvent]:
    """The events, each phase of an attempt once: training and evaluation alternate during the whole run."""
    first = {(event.attempt, event.message): event.id for event in reversed(events) if event.kind == "phase"}
    return [event for event in events if event.kind != "phase" or first[event.attempt, event.message] == event.id]


def _plan(run: Run) -> Markup:
    plan = run.plan
    if not plan:
        return Markup("")
    pairs = [
        ("Trainable parameters", _trainable(_with_percent(plan))),
        ("Engine", strategy({"summary": None, "plan": plan})),
        ("Training rows", numbers.count(plan.get("train_rows"))),
        ("Evaluation rows", numbers.count(plan.get("eval_rows"))),
        ("Truncated rows", numbers.count(plan.get("truncated_rows"))),
        ("Skipped rows", numbers.count(plan.get("skipped_rows"))),
        ("Target modules", ", ".join(plan.get("target_modules") or []) or NONE),
    ]
    return panel("Current run", pairs_table([pair for pair in pairs if pair[1] not in (NONE, "0")]))


def _with_percent(plan: dict[str, Any]) -> dict[str, Any]:
    total = plan.get("total_parameters")
    return {**plan, "trainable_percent": 100 * plan["trainable_parameters"] / total if total else None}


def _trainable(values: dict[str, Any]) -> str:
    percent = values.get("trainable_percent")
    share = f" ({percent:.4g}%)" if percent is not None else ""
    return (
        f"{numbers.count(values.get('trainable_parameters'))} of {numbers.count(values.get('total_parameters'))}{share}"
    )


def _memory(memory: dict[str, list[int | None]], forecast: dict[str, Any] | None) -> Markup:
    moments = [(moment, memory.get(f"{moment}_bytes") or []) for moment in ("before", "after", "peak", "reserved")]
    moments = [(moment, sizes) for moment, sizes in moments if sizes]
    ranks = max((len(sizes) for _, sizes in moments), default=0)
    if not ranks:
        return Markup("")
    if forecast:
        moments.append(("forecast", [forecast["allocated_bytes"]] * ranks))
    lines = [
        (rank, *[byte_size(sizes[rank] if rank < len(sizes) else None) for _, sizes in moments])
        for rank in range(ranks)
    ]
    heads = each("<th>{}</th>", [("Memory",), *[(moment,) for moment, _ in moments]])
    body = each(f"<tr><th>rank {{}}</th>{'<td>{}</td>' * len(moments)}</tr>", lines)
    return Markup('<table class="memory"><thead><tr>{}</tr></thead><tbody>{}</tbody></table>').format(heads, body)


def _default(name: str) -> Any:
    default = settings()[name].default
    return getattr(default, "value", default)


def _value(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return settings()[name].in_words(value) or "none"


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
        '<th class="number" title="{}">{}</th>', [(help, head) for head, help in _SET_HEADS]
    )
    body = each(
        "<tr>{}</tr>", [(_set_row(name, training.get(name), held_out.get(name), totals, latest),) for name in names]
    )
    return panel("Data sets", table("mix", heads, body))


def _set_row(
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
