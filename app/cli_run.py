"""`lathe run`, `lathe stop` and `lathe resume`: what asks something of a run."""

import json
import sys
from pathlib import Path
from typing import Any

import click
from psutil import pid_exists

from app import text
from app.cli_database import ready
from app.cli_follow import follow
from app.cli_screen import screen_for
from app.cli_show import failure, results
from app.lock import LOCK_FILE, address_of
from app.run_document import document
from app.run_words import took
from training.config import Method, RunConfig
from training.config_file import read_config
from training.fields import parse
from worker import database, runs, submit
from worker.archive import result_folder
from worker.models import Run, Status
from worker.settings import get_settings

EXIT = {Status.FINISHED: 0, Status.FAILED: 1, Status.STOPPED: 3}
INTERRUPTED = 130


def run(path: Path | None, overrides: dict[str, Any], *, follow: bool, as_json: bool) -> int:
    """Queues a run and, with `follow`, stays with it to its end. Returns the exit code.

    Raises:
        ConfigError: naming every setting at fault; nothing is queued then.
    """
    config = configuration(path, overrides)
    ready()
    get_settings().make_folders()  # where the database is elsewhere, they may be missing here
    queued = submit.submit(config)
    if not follow:
        click.echo(json.dumps(_document(queued.id)) if as_json else _queued(queued))
        return 0
    click.echo(f"Run {queued.id}: {queued.name}", err=as_json)
    return _stay(queued.id, as_json=as_json)


def configuration(path: Path | None, overrides: dict[str, Any]) -> RunConfig:
    """The settings of the file, with `overrides` in their place.

    Raises:
        ConfigError: the file or a setting is wrong.
        UsageError: neither a file nor a flag was given.
    """
    if path is not None:
        return read_config(path, overrides)
    if not overrides:
        raise click.UsageError("Give a configuration file, or the settings as flags: at least --model and --data.")
    return parse(overrides)


def stop(run_id: str, *, as_json: bool) -> None:
    """Asks a run to stop.

    Raises:
        RunNotFound, NotRunning: it does not exist, or has ended.
    """
    ready()
    asked = submit.stop(_identity(run_id))
    if as_json:
        click.echo(json.dumps(_document(asked.id)))
    elif asked.status == Status.STOPPED:
        click.echo(f"Run {asked.id} is stopped; it had not begun.")
    else:
        click.echo(f"Run {asked.id} saves a checkpoint and stops. Go on later with: lathe resume {asked.id}")


def resume(run_id: str, *, step_down: bool, as_json: bool) -> None:
    """Queues an ended run again.

    Raises:
        RunNotFound, NotResumable: it does not exist, is no failed or stopped run, or nothing is proposed to step down to.
    """
    ready()
    queued = submit.resume(_identity(run_id), step_down=step_down)
    click.echo(json.dumps(_document(queued.id)) if as_json else _queued(queued))


def page_url(run_id: str) -> str:
    """Where the run's page is: at the `lathe up` of this data folder, else where the settings put the web server."""
    settings = get_settings()
    try:
        holder = json.loads((settings.data_dir / LOCK_FILE).read_text(encoding="utf-8"))
        address = holder["address"] if pid_exists(holder["pid"]) else address_of(settings.host, settings.port)
    except (OSError, ValueError, KeyError):
        address = address_of(settings.host, settings.port)
    return f"{address}/run?id={run_id}"


def _stay(run_id: str, *, as_json: bool) -> int:
    screen = screen_for(sys.stderr if as_json else sys.stdout)
    try:
        status = follow(run_id, screen)
    except KeyboardInterrupt:
        screen.close()
        facts = [("Look", f"lathe show {run_id}"), ("Stop it", f"lathe stop {run_id}")]
        click.echo(f"\nRun {run_id} goes on without you.\n{text.pairs(facts)}", err=True)
        return INTERRUPTED
    values = _document(run_id)
    click.echo(json.dumps(values) if as_json else ending(values))
    return EXIT[status]


def ending(values: dict[str, Any]) -> str:
    """What a run came to, once it has ended: how, its results, where its adapter and its page are."""
    run_id, status = values["id"], values["status"]
    after = f" after {text.duration(took(values, 0))}" if values["started_at"] else ""
    facts = results(values)
    if status == Status.FAILED:
        lower = " --step-down" if (values["error"] or {}).get("step_down") else ""
        again = ("Go on with", f"lathe resume {run_id}{lower}")
        facts = [*failure(values["error"]), ("Whole log", f"lathe logs {run_id}"), again]
    elif status == Status.STOPPED:
        facts += [("Go on with", f"lathe resume {run_id}")]
    else:
        facts += [("Adapter", str(adapter_dir(values))), ("As a zip", f"lathe export {run_id} -o adapter.zip")]
    return f"{status.capitalize()}{after}\n{text.pairs([*facts, ('Page', page_url(run_id))])}"


def adapter_dir(values: dict[str, Any]) -> Path:
    """Where a run leaves its adapter, or its model after full fine-tuning, on the machine that trained it."""
    run_dir = get_settings().runs_dir / values["id"]
    return result_folder(run_dir) or run_dir / ("model" if values["config"]["method"] == Method.FULL else "adapter")


def _queued(queued: Run) -> str:
    log, look = f"lathe logs {queued.id} --follow", f"lathe show {queued.id}"
    facts = [("Log", log), ("Look", look), ("Page", page_url(queued.id))]
    return f"Queued run {queued.id}: {queued.name}\n{text.pairs(facts)}"


def _identity(run_id: str) -> str:
    with database.read() as session:
        return runs.get(session=session, run_id=run_id).id


def _document(run_id: str) -> dict[str, Any]:
    with database.read() as session:
        return document(session, run_id)
