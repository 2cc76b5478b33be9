"""`lathe sweep`: plan, start, list, show, stop and delete sweeps."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app.cli.client import Client, connect, path_of
from app.cli.options import ReportingGroup, config_type, count_type, json_option
from app.format import numbers

if TYPE_CHECKING:
    from worker.store.tables.sweep_values import SweepSpec

_SECONDS = 600.0  # a plan of 200 runs on a busy server

sweep_argument = click.argument("sweep_id", metavar="SWEEP")


class SweepGroup(ReportingGroup):
    """`lathe sweep FILE` is `lathe sweep start FILE`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first = next((word for word in args if not word.startswith("-")), None)
        return super().parse_args(ctx, args if first is None or first in self.commands else ["start", *args])


@click.group(cls=SweepGroup)
def sweep() -> None:
    """Train one configuration with several values of some settings, and find the best.

    `lathe sweep FILE` starts the sweep in a YAML or JSON file (docs/sweeps.md).
    """


@sweep.command
@click.argument("file", metavar="FILE", type=config_type)
@click.option("--dry-run", is_flag=True, help="Show the runs, their memory and time; queue nothing.")
@json_option
def start(file: Path, dry_run: bool, as_json: bool) -> None:
    """Queue the runs of a sweep. Runs that do not fit are left out."""
    from app.format import sweep_text as words
    from worker.sweeps.spec import read_sweep

    client, spec = connect(), read_sweep(file)
    if dry_run:
        plan = client.send("POST", "/api/sweeps/plan", json=_sent(client, spec), seconds=_SECONDS)
        click.echo(json.dumps(plan) if as_json else _plan(plan))
        return
    started = client.submit("/api/sweeps", _sent(client, spec), seconds=_SECONDS)
    if as_json:
        click.echo(json.dumps(started))
        return
    click.echo(f"{words.plan_words(started['plan'])}. {' '.join(words.plan_notes(started['plan']))}")
    click.echo(f"Queued sweep {started['id']}: {started['name']}\n{_commands(started['id'])}")


@sweep.command("list")
@click.option("--limit", default=50, show_default=True, metavar="N", type=count_type, help="At most N sweeps.")
@json_option
def list_(limit: int, as_json: bool) -> None:
    """List the sweeps, newest first."""
    from app.format import sweep_text as words

    found = connect().listed("/api/sweeps", "sweeps", limit)
    if as_json:
        click.echo(json.dumps(found))
    elif not found:
        click.echo("No sweeps yet. Start one with `lathe sweep FILE`.")
    else:
        rows = [["SWEEP", "NAME", "METHOD", "RUNS", "BEST"]]
        rows += [
            [one["id"], numbers.shorten(one["name"], 40), one["method"], words.progress(one), words.best(one)]
            for one in found
        ]
        click.echo(numbers.table(rows))


@sweep.command
@sweep_argument
@json_option
def show(sweep_id: str, as_json: bool) -> None:
    """Show one sweep: progress, the best configuration, and all trials."""
    values = connect().get(path_of("sweeps", sweep_id))
    click.echo(json.dumps(values) if as_json else _page(values))


@sweep.command
@sweep_argument
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
def stop(sweep_id: str, yes: bool, as_json: bool) -> None:
    """Stop all runs of a sweep.

    Running runs save a checkpoint first; `lathe resume RUN` continues one.
    """
    if sys.stdin.isatty() and not yes and not as_json:
        click.confirm(f"Stop all runs of sweep {sweep_id}?", abort=True)
    stopped = connect().send("POST", path_of("sweeps", sweep_id, "/stop"))
    click.echo(
        json.dumps(stopped) if as_json else f"Stopping sweep {stopped['id']}: its runs save a checkpoint and stop."
    )


@sweep.command
@sweep_argument
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
def delete(sweep_id: str, yes: bool, as_json: bool) -> None:
    """Delete a sweep with all its runs: results, checkpoints and metrics.

    All runs must have ended; `lathe sweep stop SWEEP` stops them.
    """
    from app.format import sweep_text as words

    client = connect()
    found = client.get(path_of("sweeps", sweep_id))
    if not yes:
        click.confirm(f"Delete sweep {found['name']} ({found['id']})? {words.lost(found)}", abort=True, err=True)
    client.send("DELETE", path_of("sweeps", found["id"]))
    click.echo(json.dumps({"id": found["id"], "deleted": True}) if as_json else f"Deleted sweep {found['id']}.")


def _commands(sweep_id: str) -> str:
    facts = [("Show", f"lathe sweep show {sweep_id}"), ("Runs", f"lathe runs --search sweep:{sweep_id}")]
    return numbers.pairs([*facts, ("Stop", f"lathe sweep stop {sweep_id}")])


def _plan(plan: dict[str, Any]) -> str:
    from app.format import sweep_text as words

    rows = [["TRIAL", "VALUES", "MEMORY", "STEPS", "STARTS", "REASON"]]
    for run in plan["runs"]:
        values = words.run_values(run)
        reason = numbers.shorten(run["reason"], 100)
        steps = numbers.count(run["steps"])
        rows.append([str(run["trial"]), values, words.memory(run), steps, words.verdict(run), reason])
    notes = " ".join(words.plan_notes(plan))
    return f"{words.plan_words(plan)}. {notes}\n\n{numbers.table(rows, right=frozenset({0, 2, 3}))}"


def _page(values: dict[str, Any]) -> str:
    from app.format import sweep_text as words

    facts = [
        ("Method", words.METHODS[values["method"]]),
        ("Runs", words.progress(values)),
        ("Best" if values["ended"] else "Best so far", words.best(values) or "no result yet"),
        ("Second", words.lead(values)),
        ("Saved", words.saved(values)),
    ]
    rows = [["TRIAL", "VALUES", values["metric"].upper(), "STEP", "RUNS"]]
    for trial in values["trials"]:
        listed = ", ".join(f"{run['id']} {run['state']}" for run in trial["runs"])
        value = words.value_words(trial["summary"])
        rows.append([str(trial["trial"]), words.trial_words(trial), value, numbers.count(trial["at_step"]), listed])
    told = numbers.pairs([(label, text) for label, text in facts if text])
    return f"Sweep {values['id']}: {values['name']}\n{told}\n\n{numbers.table(rows, right=frozenset({0, 3}))}"


def _sent(client: Client, spec: "SweepSpec") -> dict[str, Any]:
    """The sweep as the client sends it."""
    from app.cli import sent_files

    values = spec.model_dump(mode="json", exclude_unset=True)
    return values | {"config": sent_files.values(client, values["config"])}
