"""`lathe run`, `lathe stop` and `lathe resume`."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from app.cli import sent_files
from app.cli.client import connect, path_of, ready
from app.cli.runs.follow import follow, screen_for
from app.cli.runs.show import failure, not_done, results
from app.format import numbers
from app.format.run_text import DIFFERS, missing, result_noun, took
from training.config.choices import Method
from training.config.fields import parse
from training.config.run_config import RunConfig
from training.config.yaml_file import read_config
from training.parts import present
from training.run_folder.paths import result_dir, saved_result
from training.run_folder.record import read_record
from training.tables import only
from worker.runs import lineage
from worker.settings import get_settings
from worker.store import database
from worker.store.tables import Status

EXIT = only({Status.FINISHED: 0, Status.FAILED: 1, Status.STOPPED: 3, Status.DIVERGED: 4})
NOT_AS_TRAINED = 5
INTERRUPTED = 130


def run(path: Path | None, overrides: dict[str, Any], *, like: Path | None, follow: bool, as_json: bool) -> int:
    """Queues a run and, with `follow`, follows it to its end. Returns the exit code."""
    if path and like:
        raise click.UsageError("Give either a configuration file or --like.")
    config = like_result(like, overrides) if like else configuration(path, overrides)
    client = connect()
    queued = client.submit("/api/runs", sent_files.settings(client, config))
    if misfit := (queued.get("queue") or {}).get("memory"):  # empty, or absent from an older server
        click.echo(f"Warning: {misfit} `lathe forecast` lists settings that fit.", err=True)
    if not follow:
        click.echo(json.dumps(queued) if as_json else _queued(queued))
        return 0
    click.echo(f"Run {queued['id']}: {queued['name']}", err=as_json)
    return _follow(queued["id"], as_json=as_json)


def configuration(path: Path | None, overrides: dict[str, Any]) -> RunConfig:
    """The settings of the file, overridden by `overrides`."""
    if path is not None:
        for refuse in present("app.cli.import_files:refuse_foreign"):
            refuse(path)
        return read_config(path, overrides)
    if not overrides:
        raise click.UsageError("Give a configuration file, or the settings as flags: at least --model and --data.")
    return parse(overrides)


def like_result(folder: Path, overrides: dict[str, Any]) -> RunConfig:
    """The settings of the run that made a result; says on stderr what differs on this machine."""
    record = read_record(folder)
    if connect().remote:
        return parse(lineage.settings_of(record, None, overrides))
    ready()
    with database.read() as session:
        config = parse(lineage.settings_of(record, session, overrides))
    for sentence in lineage.differences(record, config):
        click.echo(sentence, err=True)
    return config


def stop(run_id: str, *, as_json: bool) -> None:
    """Requests a run to stop."""
    stopped = connect().send("POST", path_of("runs", run_id, "/stop"))
    if as_json:
        click.echo(json.dumps(stopped))
    elif stopped["status"] == Status.STOPPED:
        click.echo(f"Stopped run {stopped['id']} before it started training.")
    else:
        resume_command = f"lathe resume {stopped['id']}"
        click.echo(f"Run {stopped['id']} saves a checkpoint and stops. Continue later with: {resume_command}")


def resume(
    run_id: str, *, step_down: bool, num_processes: int | None = None, strategy: str | None = None, as_json: bool
) -> None:
    """Requeues a run, if given with another strategy or number of processes."""
    changes = {"step_down": step_down, "num_processes": num_processes, "strategy": strategy}
    queued = connect().send("POST", path_of("runs", run_id, "/resume"), params=changes)
    click.echo(json.dumps(queued) if as_json else _queued(queued))


def page_url(run_id: str) -> str:
    """The address of the run's page."""
    return f"{connect().pages}/run?id={run_id}"


def _follow(run_id: str, *, as_json: bool) -> int:
    screen = screen_for(sys.stderr if as_json else sys.stdout)
    try:
        status = follow(run_id, screen)
    except KeyboardInterrupt:
        screen.close()
        facts = [("Show", f"lathe show {run_id}"), ("Stop", f"lathe stop {run_id}")]
        click.echo(f"\nRun {run_id} continues in the background.\n{numbers.pairs(facts)}", err=True)
        return INTERRUPTED
    values = connect().get(path_of("runs", run_id))
    click.echo(json.dumps(values) if as_json else ending(values))
    return NOT_AS_TRAINED if values.get("differs") else EXIT[status]


def ending(values: dict[str, Any]) -> str:
    """The outcome of an ended run: its results or its error, its adapter and its page."""
    run_id, status = values["id"], values["status"]
    after = f" after {numbers.duration(took(values, 0))}" if values["started_at"] else ""
    facts = results(values)
    if status == Status.FAILED:
        lower = " --step-down" if (values["error"] or {}).get("step_down") else ""
        resume_command = ("Resume", f"lathe resume {run_id}{lower}")
        facts = [*failure(values["error"]), ("Full log", f"lathe logs {run_id}"), resume_command]
    elif status == Status.STOPPED or (status == Status.DIVERGED and not values["summary"]):
        facts += [("Resume", f"lathe resume {run_id}")]
    else:
        noun = result_noun(values["config"])
        facts += [] if connect().remote else [(noun.capitalize(), str(adapter_dir(values)))]
        facts += [("Export", f"lathe export {run_id} -o {noun}.zip")]
    facts += not_done(values)
    after = "".join(f", {word}" for word in missing(values.get("undone") or {})) + after
    if values.get("differs"):
        facts += [("Not as trained", f"lathe verify {run_id}")]
        after = f", {DIFFERS}{after}"
    return f"{status.capitalize()}{after}\n{numbers.pairs([*facts, ('Page', page_url(run_id))])}"


def adapter_dir(values: dict[str, Any]) -> Path:
    """The folder of a run's adapter, or of its model after full fine-tuning, on the machine that trained it."""
    run_dir = get_settings().runs_dir / values["id"]
    return saved_result(run_dir) or result_dir(run_dir, adapts=values["config"]["method"] != Method.FULL)


def _queued(queued: dict[str, Any]) -> str:
    log, show = f"lathe logs {queued['id']} --follow", f"lathe show {queued['id']}"
    facts = [("Log", log), ("Show", show), ("Page", page_url(queued["id"]))]
    return f"Queued run {queued['id']}: {queued['name']}\n{numbers.pairs(facts)}"
