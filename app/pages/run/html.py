"""The parts of the page Run as HTML. Pure functions of database rows."""

import time
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from markupsafe import Markup

from app.pages.common.cache import TimedCache
from app.pages.common.diagnosis import comparison_html, diagnosis_html
from app.pages.common.form import applying, from_config
from app.pages.common.html import ago, bar, clock, each, facts, panel, rows, share_done, status_word, took
from app.words import numbers
from app.words.datasets import data_words, digest_label
from app.words.runs import eta, exact_match, scores, strategy
from training.config.data_sets import FIELDS
from training.config.fields import settings
from training.units import NONE, byte_size
from worker.store.tables import LogLine, Run, RunEvent, Status
from worker.supervision.run_diagnosis import compared

Queue = dict[str, Any] | None

_comparisons: TimedCache[tuple[str, int], dict[str, Any] | None] = TimedCache(seconds=60)


def heading(run: Run) -> Markup:
    """Name, status, id, origin and owner."""
    aside: list[Any] = [Markup('<span class="mono">{}</span>').format(run.id)]
    if run.parent_id:
        aside.append(
            Markup('cloned from <a href="/run?id={}" class="mono">{}</a>').format(run.parent_id, run.parent_id)
        )
    if run.attempt > 1:
        aside.append(f"attempt {run.attempt}")
    aside.append(Markup("queued by {} {}").format(run.owner, ago(run.queued_at)))
    return Markup('<div class="run-title"><h1 title="{}">{}</h1><p>{} {}</p></div>').format(
        run.name, run.name, status_word(run.status, run.request), Markup(" · ").join(aside)
    )


def progress(run: Run, queue: Queue) -> Markup:
    """Progress bar, phase, step, times and devices."""
    pairs = [
        ("Phase", _phase(run, queue)),
        ("Step", f"{run.step:,} of {run.total_steps:,}" if run.total_steps else NONE),
        ("Elapsed" if not run.status.ended else "Duration", took(run)),
        ("Time left", _time_left(run)),
        ("Devices", ", ".join(run.devices)),
    ]
    shown = facts([pair for pair in pairs if pair[1] != ""])
    return Markup('<section class="panel standing">{}{}</section>').format(_bar(run), shown)


def failure(run: Run, log: Sequence[LogLine]) -> Markup:
    """The error, its fix, the end of the log and the diagnosis; nothing for a healthy run."""
    error = run.error
    if not error:
        note = "Training diverged: the loss is NaN or infinite. Lower the learning rate or lengthen the warmup."
        return Markup('<div class="alert" role="alert">{}</div>').format(note) if run.diverged else Markup("")
    rank = error.get("rank")
    where = ", ".join(part for part in (str(error.get("phase") or ""), "" if rank is None else f"rank {rank}") if part)
    tail = str(error.get("log_tail") or "\n".join(line.text for line in log[-12:]))
    details = [("Last log lines", tail), ("Traceback", str(error.get("traceback") or ""))]
    folded = each(
        "<details><summary>{}</summary><pre>{}</pre></details>", [detail for detail in details if detail[1].strip()]
    )
    alert = Markup('<div class="alert" role="alert"><b>{}</b>{} <em>{}</em>{}</div>').format(
        error.get("message") or "The run failed.", f" ({where})" if where else "", error.get("fix") or "", folded
    )
    diagnosis = diagnosis_html(error["diagnosis"], run_id=run.id) if error.get("diagnosis") else Markup("")
    return alert + diagnosis + comparison_html(_comparisons.get((run.id, run.attempt), lambda: compared(run.id)))


def event_list(events: Sequence[RunEvent]) -> Markup:
    """The events, newest first."""
    items = each(
        '<li class="{} {}">{}<span>{}</span></li>',
        [(event.level, event.kind, clock(event.time), event.message) for event in reversed(_without_repeats(events))],
    )
    return panel("Events", Markup('<ol class="events">{}</ol>').format(items) if items else _note("No events yet."))


def log_tail(log: Sequence[LogLine]) -> Markup:
    """The last lines of the training process, with a line where each later attempt begins."""
    parts: list[str] = []
    for attempt, lines in groupby(log, key=lambda line: line.attempt):
        parts += [f"----- attempt {attempt} -----"] if attempt > 1 else []
        parts += [line.text for line in lines]
    body = Markup('<pre class="log" data-follow tabindex="0">{}</pre>').format("\n".join(parts))
    return panel("Log", body if parts else _note("No output yet."))


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
    folded = Markup('<details><summary>{} at default</summary><table class="pairs">{}</table></details>').format(
        numbers.plural(len(usual), "setting"), rows(usual)
    )
    digest = Markup('<span class="mono" title="{}">{}…</span>')
    pairs += [
        (f"{digest_label(name, known[name.partition(' ')[0]].label)}, SHA-256", digest.format(sha, sha[:16]))
        for name, sha in run.fingerprints.items()
    ]
    return panel("Configuration", Markup('<table class="pairs">{}</table>{}').format(rows(pairs), folded))


def results(run: Run) -> Markup:
    """The run's final metrics; before its end, what it has reported about itself."""
    summary = run.summary
    if not summary:
        return Markup("") if run.status.ended else _plan(run)
    pairs = [
        ("Exact match, held-out", exact_match(summary.get("answers"))),
        *[(f"{label[0].upper()}{label[1:]}, held-out", score) for label, score in scores(summary.get("answers"))],
        ("Final loss", numbers.decimal(summary.get("final_loss"))),
        ("Evaluation loss", numbers.decimal(summary.get("eval_loss"))),
        ("Perplexity, held-out", numbers.decimal(summary.get("eval_perplexity"))),
        ("Trainable parameters", _trainable(summary)),
        ("Adapter", byte_size(summary.get("adapter_bytes"))),
        ("Speed", ", ".join(numbers.rate(summary.get(f"{noun}_per_second"), noun) for noun in ("tokens", "samples"))),
        ("Training time", numbers.duration(summary.get("train_seconds"))),
        ("Engine", strategy({"summary": summary, "plan": run.plan})),
        ("Attempts", numbers.count(run.attempt)),
    ]
    shown = Markup('<table class="pairs">{}</table>').format(rows([pair for pair in pairs if pair[1] != NONE]))
    return panel("Results", shown + _memory(summary.get("memory") or {}, run.forecast))


def missing(reason: str) -> Markup:
    """The page for an id that no run has."""
    template = Markup(
        '<div class="empty"><h2>Run not found</h2><p>{}</p><a class="button" href="/">Show all runs</a></div>'
    )
    return template.format(reason)


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
    shown = rows([pair for pair in pairs if pair[1] not in (NONE, "0")])
    return panel("Current run", Markup('<table class="pairs">{}</table>').format(shown))


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


def _phase(run: Run, queue: Queue) -> str:
    if run.status is Status.QUEUED:
        if not queue:
            return "queued"
        running = f", {numbers.plural(queue['running'], 'run')} running" if queue["running"] else ""
        overloaded = f". {queue['overloaded']}" if queue["overloaded"] else ""
        return f"position {queue['place']} of {queue['waiting']} in the queue{running}{overloaded}"
    if run.status.ended:
        return run.status.value
    if run.request == "stop":
        return "stopping: saving a checkpoint"
    counted = f" {run.phase_done or 0:,} of {run.phase_total:,}" if run.phase_total else ""
    return f"{run.phase or 'starting'}{counted}"


def _bar(run: Run) -> Markup:
    share = share_done(run)
    if run.status is Status.RUNNING and run.phase_total and run.phase != "training":
        share = (run.phase_done or 0) / run.phase_total
    if share is None and run.status is not Status.RUNNING:
        share = 0.0
    return bar(share, label="progress", classes=f"wide {run.status.value}")


def _time_left(run: Run) -> Markup | str:
    left = eta(run.model_dump(include={"seconds_per_step", "total_steps", "step"}))
    if run.status is not Status.RUNNING or left is None:
        return ""
    return Markup('<span data-until="{}">{}</span>').format(f"{time.time() + left:.0f}", numbers.duration(left))


def _default(name: str) -> Any:
    default = settings()[name].default
    return getattr(default, "value", default)


def _value(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return settings()[name].in_words(value) or "none"


def _note(text: str) -> Markup:
    return Markup('<p class="note">{}</p>').format(text)
