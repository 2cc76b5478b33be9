"""The pieces of the page Run as HTML: pure functions of what the database knows of a run."""

import time
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from markupsafe import Markup

from app import text
from app.form import applying, from_config
from app.pages.diagnosis_parts import diagnosis_html
from app.pages.parts import ago, bar, clock, each, facts, panel, rows, share_done, status_word, took
from app.run_words import eta, exact_match, scores, strategy
from training.fields import settings
from worker.models import LogLine, Run, RunEvent, Status

Queue = dict[str, Any] | None


def heading(run: Run) -> Markup:
    """Name, status and where the run came from."""
    aside: list[Any] = [Markup('<span class="mono">{}</span>').format(run.id)]
    if run.parent_id:
        aside.append(Markup('clone of <a href="/run?id={}" class="mono">{}</a>').format(run.parent_id, run.parent_id))
    if run.attempt > 1:
        aside.append(f"attempt {run.attempt}")
    aside.append(Markup("queued by {} {}").format(run.owner, ago(run.queued_at)))
    return Markup('<div class="run-title"><h1 title="{}">{}</h1><p>{} {}</p></div>').format(
        run.name, run.name, status_word(run.status, run.request), Markup(" · ").join(aside)
    )


def standing(run: Run, queue: Queue) -> Markup:
    """How far the run is: phase, bar, step, times, devices."""
    told = [
        ("Phase", _phase(run, queue)),
        ("Step", f"{run.step:,} of {run.total_steps:,}" if run.total_steps else text.NONE),
        ("Elapsed" if not run.status.ended else "Took", took(run)),
        ("Time left", _time_left(run)),
        ("Devices", ", ".join(run.devices)),
    ]
    known = facts([fact for fact in told if fact[1] != ""])
    return Markup('<section class="panel standing">{}{}</section>').format(_bar(run), known)


def trouble(run: Run, log: Sequence[LogLine]) -> Markup:
    """What went wrong, the fix, and the end of the log; nothing for a run that is well."""
    if not run.error:
        note = (
            "The loss was not a number or infinite: the run has diverged. Lower the learning rate, or raise the warmup."
        )
        return Markup('<div class="alert" role="alert">{}</div>').format(note) if run.diverged else Markup("")
    told = run.error
    rank = told.get("rank")
    where = ", ".join(part for part in (str(told.get("phase") or ""), "" if rank is None else f"rank {rank}") if part)
    tail = str(told.get("log_tail") or "\n".join(line.text for line in log[-12:]))
    details = [("What the program printed last", tail), ("Traceback", str(told.get("traceback") or ""))]
    folded = each("<details><summary>{}</summary><pre>{}</pre></details>", [one for one in details if one[1].strip()])
    alert = Markup('<div class="alert" role="alert"><b>{}</b>{} <em>{}</em>{}</div>').format(
        told.get("message") or "The run failed.", f" ({where})" if where else "", told.get("fix") or "", folded
    )
    return alert + (diagnosis_html(told["diagnosis"], run_id=run.id) if told.get("diagnosis") else "")


def happenings(events: Sequence[RunEvent]) -> Markup:
    """What happened, newest first."""
    told = reversed(_worth_telling(events))
    items = each(
        '<li class="{} {}">{}<span>{}</span></li>',
        [(event.level, event.kind, clock(event.time), event.message) for event in told],
    )
    return panel(
        "Events", Markup('<ol class="events">{}</ol>').format(items) if items else _nothing("Nothing has happened yet.")
    )


def printed(log: Sequence[LogLine]) -> Markup:
    """The end of what the training process printed; a new start is marked."""
    parts: list[str] = []
    for attempt, lines in groupby(log, key=lambda line: line.attempt):
        parts += [f"----- attempt {attempt} -----"] if attempt > 1 else []
        parts += [line.text for line in lines]
    body = Markup('<pre class="log" data-follow tabindex="0">{}</pre>').format("\n".join(parts))
    return panel("Log", body if parts else _nothing("Nothing has been printed yet."))


def configuration(run: Run, dataset_names: dict[str, str]) -> Markup:
    """The settings that differ from their defaults, then the others that have a meaning, folded away."""
    values = applying(from_config(run.config))
    known = settings()
    changed = [name for name in values if known[name].required or run.config.get(name) != _default(name)]
    named = {name: dataset_names.get(values[name], _written(values[name])) for name in changed}
    pairs = [(known[name].label, Markup('<b title="{}">{}</b>').format(values[name], named[name])) for name in changed]
    usual = [(known[name].label, _written(value)) for name, value in values.items() if name not in changed]
    folded = Markup('<details><summary>{} at their default</summary><table class="pairs">{}</table></details>').format(
        text.plural(len(usual), "setting"), rows(usual)
    )
    digest = Markup('<span class="mono" title="{}">{}…</span>')
    pairs += [(f"{known[name].label}, SHA-256", digest.format(one, one[:16])) for name, one in run.fingerprints.items()]
    return panel("Configuration", Markup('<table class="pairs">{}</table>{}').format(rows(pairs), folded))


def results(run: Run) -> Markup:
    """What came of the run, as it reported: nothing before its end."""
    summary = run.summary
    if not summary:
        return Markup("") if run.status.ended else _planned(run)
    pairs = [
        ("Exact match, held out", exact_match(summary.get("answers"))),
        *[(f"{label[0].upper()}{label[1:]}, held out", told) for label, told in scores(summary.get("answers"))],
        ("Final loss", text.decimal(summary.get("final_loss"))),
        ("Evaluation loss", text.decimal(summary.get("eval_loss"))),
        ("Perplexity, held out", text.decimal(summary.get("eval_perplexity"))),
        ("Trained parameters", _trained(summary)),
        ("Adapter", text.byte_size(summary.get("adapter_bytes"))),
        ("Speed", ", ".join(text.rate(summary.get(f"{noun}_per_second"), noun) for noun in ("tokens", "samples"))),
        ("Training time", text.duration(summary.get("train_seconds"))),
        ("Strategy as run", strategy({"summary": summary, "plan": run.plan})),
        ("Attempts", text.count(run.attempt)),
    ]
    shown = Markup('<table class="pairs">{}</table>').format(rows([pair for pair in pairs if pair[1] != text.NONE]))
    return panel("Results", shown + _memory(summary.get("memory") or {}, run.forecast))


def missing(reason: str) -> Markup:
    """The page of a run that does not exist."""
    template = Markup(
        '<div class="empty"><h2>No such run</h2><p>{}</p><a class="button" href="/">Show all runs</a></div>'
    )
    return template.format(reason)


def _worth_telling(events: Sequence[RunEvent]) -> list[RunEvent]:
    """Every event but the phases that an attempt was in before: training and evaluating take turns all along."""
    first = {(event.attempt, event.message): event.id for event in reversed(events) if event.kind == "phase"}
    return [event for event in events if event.kind != "phase" or first[event.attempt, event.message] == event.id]


def _planned(run: Run) -> Markup:
    plan = run.plan
    if not plan:
        return Markup("")
    pairs = [
        ("Trained parameters", _trained(_with_percent(plan))),
        ("Strategy as run", strategy({"summary": None, "plan": plan})),
        ("Training rows", text.count(plan.get("train_rows"))),
        ("Evaluation rows", text.count(plan.get("eval_rows"))),
        ("Rows cut off", text.count(plan.get("truncated_rows"))),
        ("Rows left out", text.count(plan.get("skipped_rows"))),
        ("Adapted modules", ", ".join(plan.get("target_modules") or []) or text.NONE),
    ]
    shown = rows([pair for pair in pairs if pair[1] not in (text.NONE, "0")])
    return panel("Under way", Markup('<table class="pairs">{}</table>').format(shown))


def _with_percent(plan: dict[str, Any]) -> dict[str, Any]:
    total = plan.get("total_parameters")
    return {**plan, "trainable_percent": 100 * plan["trainable_parameters"] / total if total else None}


def _trained(values: dict[str, Any]) -> str:
    percent = values.get("trainable_percent")
    share = f" ({percent:.4g}%)" if percent is not None else ""
    return f"{text.count(values.get('trainable_parameters'))} of {text.count(values.get('total_parameters'))}{share}"


def _memory(memory: dict[str, list[int | None]], forecast: dict[str, Any] | None) -> Markup:
    moments = [(moment, memory.get(f"{moment}_bytes") or []) for moment in ("before", "after", "peak", "reserved")]
    moments = [one for one in moments if one[1]]
    ranks = max((len(sizes) for _, sizes in moments), default=0)
    if not ranks:
        return Markup("")
    if forecast:
        moments.append(("predicted", [forecast["allocated_bytes"]] * ranks))
    lines = [
        (rank, *[text.byte_size(sizes[rank] if rank < len(sizes) else None) for _, sizes in moments])
        for rank in range(ranks)
    ]
    heads = each("<th>{}</th>", [("Memory",), *[(moment,) for moment, _ in moments]])
    body = each(f"<tr><th>rank {{}}</th>{'<td>{}</td>' * len(moments)}</tr>", lines)
    return Markup('<table class="memory"><thead><tr>{}</tr></thead><tbody>{}</tbody></table>').format(heads, body)


def _phase(run: Run, queue: Queue) -> str:
    if run.status is Status.QUEUED:
        if not queue:
            return "queued"
        busy = f", {text.plural(queue['running'], 'run')} training" if queue["running"] else ""
        overloaded = f". {queue['overloaded']}" if queue["overloaded"] else ""
        return f"place {queue['place']} of {queue['waiting']} in the queue{busy}{overloaded}"
    if run.status.ended:
        return run.status.value
    if run.request == "stop":
        return "stopping: a checkpoint is being saved"
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
    return Markup('<span data-until="{}">{}</span>').format(f"{time.time() + left:.0f}", text.duration(left))


def _default(name: str) -> Any:
    default = settings()[name].default
    return getattr(default, "value", default)


def _written(value: Any) -> str:
    return (
        {True: "yes", False: "no", "": "none"}.get(value, str(value)) if isinstance(value, (bool, str)) else str(value)
    )


def _nothing(words: str) -> Markup:
    return Markup('<p class="note">{}</p>').format(words)
