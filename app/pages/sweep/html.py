"""The parts of the page Sweep as HTML. Pure functions of the sweep's document."""

from typing import Any

from markupsafe import Markup

from app.pages.common.form import label
from app.pages.common.html import ago, bar, each, facts, panel, share_button, status_dot, table
from app.words import numbers
from app.words import sweeps as words
from training.config.fields import settings
from training.units import NONE
from worker.store.tables import Status

Document = dict[str, Any]
_CLASSES = {"stopped early": "stopped", "paused": "queued"}


def heading(sweep: Document) -> Markup:
    """Name, id, method, owner and links."""
    about = Markup(' · <span class="mono">{}</span> · {} · started by {} {}').format(
        sweep["id"], words.METHODS[sweep["method"]], sweep["owner"], ago(sweep["created_at"])
    )
    return Markup('<div class="run-title"><h1 title="{0}">{0}</h1><p>{1}{2}</p></div>').format(
        sweep["name"], _state(sweep), about
    )


def links(sweep: Document) -> Markup:
    """Links to the runs, to their comparison and to a new sweep."""
    ids = [run["id"] for trial in sweep["trials"] for run in trial["runs"]]
    compared = f"/compare?runs={','.join(ids[:50])}"
    return Markup(
        '<div class="links"><a class="button" href="/?search=sweep%3A{}">Runs</a><a class="button" href="{}">Compare</a>{}</div>'
    ).format(sweep["id"], compared, share_button("sweeps", sweep["id"], sweep["owner"]))


def standing(sweep: Document) -> Markup:
    """Progress, the best configuration, whether it is better than the second, and the saved steps."""
    runs = [run for trial in sweep["trials"] for run in trial["runs"]]
    share = sum(_share(run) for run in runs) / len(runs) if runs else 0.0
    pairs = [("Runs", words.progress(sweep)), ("Planned", words.plan_words(sweep["plan"]))]
    if saved := words.saved(sweep):
        pairs.append(("Early stopping", saved))
    best = Markup('<p class="note">No result yet. The first appears with the first {} of a run.</p>').format(
        sweep["metric"]
    )
    if sweep["best"]:
        heading = "Best" if sweep["ended"] else "Best so far"
        best = Markup('<p class="sweep-best"><b>{}</b> {}</p><p class="note">{}</p>').format(
            heading, _best_link(sweep), words.lead(sweep)
        )
    line = bar(share, label="progress", classes=f"wide {'finished' if sweep['ended'] else 'running'}")
    return panel("Progress", line + facts(pairs) + best)


def trials(sweep: Document) -> Markup:
    """The table of trials, the best first, and the runs that were left out."""
    names = list(sweep["spec"]["space"])
    direction = "lower is better" if sweep["direction"] == "minimize" else "higher is better"
    heads = [("Trial", "number"), *[(label(name), _kind(name)) for name in names]]
    heads += [(f"{sweep['metric']} ({direction})", "number"), ("Steps", "number"), ("Runs", "")]
    drawn = each('<th class="{}"><span>{}</span></th>', [(kind, head) for head, kind in heads])
    best = sweep["best"]["trial"] if sweep["best"] else None
    rows = Markup("").join(_row(trial, names, is_best=trial["trial"] == best) for trial in sweep["trials"])
    return panel("Trials", table("figures trials", drawn, rows)) + _left_out(sweep["plan"])


def question(sweep: Document) -> Markup:
    """What the dialog asks before a sweep is stopped."""
    ended = tuple(status for status in Status if status.ended)
    live = [run for trial in sweep["trials"] for run in trial["runs"] if not run["state"].startswith(ended)]
    then = "Running ones save a checkpoint first; Resume continues a run later."
    return Markup("<h2>Stop {}?</h2><p>{} will stop. {}</p>").format(
        sweep["name"], numbers.plural(len(live), "run"), then
    )


def _share(run: Document) -> float:
    """How much of a run is done; all of it once it has ended."""
    if Status(run["status"]).ended:
        return 1.0
    return min(run["step"] / run["total_steps"], 1.0) if run["total_steps"] else 0.0


def _state(sweep: Document) -> Markup:
    word = "stopped" if sweep["stopped_at"] and sweep["ended"] else "stopping" if sweep["stopped_at"] else ""
    word = word or ("finished" if sweep["ended"] else "running" if "running" in sweep["statuses"] else "queued")
    return _status({"stopping": "running"}.get(word, word), word)


def _status(kind: str, word: str) -> Markup:
    return status_dot(_CLASSES.get(kind, kind), word)


def _best_link(sweep: Document) -> Markup:
    run = sweep["best"]["runs"][0]
    return Markup('<a href="/run?id={}">{}</a>').format(run["id"], words.best(sweep))


def _row(trial: Document, names: list[str], *, is_best: bool) -> Markup:
    known = settings()
    cells = [("number", trial["trial"])]
    cells += [(_kind(name), known[name].in_words(trial["changes"][name])) for name in names]
    value = words.value_words(trial["summary"])
    cells += [
        ("number", Markup('<b class="best">{}</b>').format(value) if is_best else value),
        ("number", numbers.count(trial["at_step"]) if trial["summary"] else NONE),
        ("", _runs(trial)),
    ]
    return Markup("<tr>{}</tr>").format(each('<td class="{}">{}</td>', cells))


def _runs(trial: Document) -> Markup:
    """A link to each run, named by its status, and by its seed where there are several."""
    several = len(trial["runs"]) > 1
    items = [(run["id"], run["name"], _status(run["state"], _run_word(run, several=several))) for run in trial["runs"]]
    return Markup('<span class="trial-runs">{}</span>').format(each('<a href="/run?id={}" title="{}">{}</a>', items))


def _run_word(run: Document, *, several: bool) -> str:
    word = str(run["state"])
    if word in ("paused", "stopped early"):
        word += f" at step {run['step']:,}"
    elif word == "running" and run["total_steps"]:
        word += f", step {run['step']:,} of {run['total_steps']:,}"
    if not several:
        return word
    value = f" {numbers.decimal(run['value'])}" if run["value"] is not None else ""
    return f"seed {run['seed']}: {word}{value}"


def _left_out(plan: Document) -> Markup:
    left = [run for run in plan["runs"] if not run["starts"]]
    if not left:
        return Markup("")
    items = each(
        "<li><b>{}</b> {}: {}</li>", [(words.run_values(run), words.verdict(run), run["reason"]) for run in left]
    )
    return Markup('<details class="panel"><summary>{} left out</summary><ul class="left-out">{}</ul></details>').format(
        numbers.plural(len(left), "run"), items
    )


def _kind(name: str) -> str:
    return "number" if settings()[name].kind in ("integer", "number") else ""
