"""`lathe export`, `push`, `archive` and `restore`: a run's result to a zip, a folder or a hub, and whole runs as one file."""

import json
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile

import click

from app.cli import sent_files
from app.cli.client import Client, connect, path_of, ready
from app.cli.options import CommandError
from app.cli.runs.follow import POLL_SECONDS, screen_for
from app.format.run_text import building, difference, figures
from training.errors import UserError
from training.files import whole_file, whole_folder
from training.run_folder.derived import ADAPTER_GGUF_FILE, GgufType
from training.run_folder.model_card import upload
from training.run_folder.paths import ARCHIVE_FILE, MERGED_FILE
from training.units import byte_size
from worker.results import packing, results, verification
from worker.results.results import NoResult
from worker.settings import hub_token
from worker.store import database, runs
from worker.store.tables import Run, Status


@dataclass(frozen=True)
class Form:
    """What is exported: the adapter or model itself, merged, or as GGUF of a type, or the adapter as GGUF."""

    merged: bool = False
    gguf: GgufType | None = None
    gguf_adapter: bool = False

    @classmethod
    def of(cls, *, merged: bool, gguf: bool, kind: GgufType | None, adapter: bool) -> "Form":
        """The form that the options name."""
        if not gguf and (kind or adapter):
            raise CommandError("--type" if kind else "--adapter", kind, "is for GGUF files.", "Add --gguf.")
        if adapter and (kind or merged):
            fix = "Omit --type and --merged, or --adapter."
            raise CommandError("--adapter", None, "is the adapter alone, in its own dtype.", fix)
        return cls(merged, None if adapter or not gguf else kind or GgufType.TRAINED, adapter)

    @property
    def is_file(self) -> bool:
        """True if the result is one GGUF file."""
        return self.gguf is not None or self.gguf_adapter

    @property
    def built(self) -> str:
        """What a server builds on request; "" for the result itself."""
        if self.gguf:
            return self.gguf.form
        return results.GGUF_ADAPTER if self.gguf_adapter else results.MERGED if self.merged else ""

    @property
    def ending(self) -> str:
        """How the name of the file ends."""
        if self.gguf:
            return self.gguf.file.removeprefix("model")
        return f"-{ADAPTER_GGUF_FILE}" if self.gguf_adapter else "-merged.zip" if self.merged else ".zip"


def export(
    run_id: str, *, output: Path | None, to: Path | None, merged: bool, gguf: bool, kind: str | None, adapter: bool,
    force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Copies a run's result to the file `output` or the folder `to`, completely or not at all."""
    form = Form.of(merged=merged, gguf=gguf, kind=GgufType(kind) if kind else None, adapter=adapter)
    if (output is None) == (to is None):
        raise CommandError("--output", None, "expected either a ZIP file or a folder.", "Give --output or --to.")
    client = connect()
    if client.remote:
        target = _download(client, run_id, output or to, form, unpack=to is not None, force=force)
        _tell(target, as_json=as_json)
        return
    run = _run(run_id)
    if form.is_file:
        made = _gguf(run, form)
        _tell(_copy_file(made, output or to, f"{run.id}{form.ending}", force=force), as_json=as_json)
        return
    folder = results.Builder(run).merged() if form.merged else results.find(run)
    target = (
        _copy_folder(folder, to, force=force) if to else _copy_zip(run, folder, output, merged=form.merged, force=force)
    )
    _tell(target, as_json=as_json)


def gather(run_id: str, to: Path, step: int | None, *, as_json: bool) -> None:
    """Writes the adapter or model of a checkpoint to the folder `to`."""
    _refuse_existing(to, "FOLDER", force=False)
    target, client = to.absolute(), connect()
    if client.remote:
        full_id = client.get(path_of("runs", run_id))["id"]
        address = _built(client, full_id, "checkpoint" if step is None else f"checkpoint-{step}")
        _download_folder(client, address, target)
    else:
        results.Builder(_run(run_id)).gather(target, step)
    _tell(target, as_json=as_json)


def push(run_id: str, repo: str, *, merged: bool, public: bool, as_json: bool) -> None:
    """Uploads a run's result to a hub's repository."""
    run = _run(run_id)
    folder = results.Builder(run).merged() if merged else results.find(run)
    try:
        url = upload(folder, repo, private=not public, secret=hub_token())
    except UserError as error:
        raise CommandError("REPO", repo, error.message, error.fix) from None
    click.echo(json.dumps({"url": url}) if as_json else f"Pushed to {url}.")


def archive_run(run_id: str, file: Path, *, force: bool, as_json: bool) -> None:
    """Writes a whole run into one file, completely or not at all."""
    client = connect()
    full_id = client.get(path_of("runs", run_id))["id"]
    target = file / f"{full_id}.lathe.zip" if file.is_dir() else file
    _refuse_existing(target, "FILE", force=force)
    client.download(path_of("runs", full_id, "/archive.zip"), target)
    _tell(target, as_json=as_json)


def restore_run(file: Path, *, as_json: bool) -> None:
    """Imports the run in an archive."""
    try:
        restored = sent_files.upload(connect(), "/api/archives", file)
    except UserError as error:
        if error.problem.field != "body":
            raise
        raise CommandError("FILE", str(file), error.message, error.fix) from None
    run = {name: restored[name] for name in ("id", "name")}
    message = f"Imported run {run['id']}: {run['name']}\nShow  lathe show {run['id']}"
    click.echo(json.dumps(run) if as_json else message)


def _gguf(run: Run, form: Form) -> Path:
    builder = results.Builder(run, tell=partial(click.echo, err=True))
    return builder.gguf(form.gguf) if form.gguf else builder.gguf_adapter()


def _download(client: Client, run_id: str, target: Path | None, form: Form, *, unpack: bool, force: bool) -> Path:
    """Downloads a result of the server to a file, or unpacked into a folder."""
    assert target is not None
    full_id = client.get(path_of("runs", run_id))["id"]
    unpack = unpack and not form.is_file
    if target.is_dir() and not unpack:
        target = target / f"{full_id}{form.ending}"
    if not (unpack and target.is_dir() and not any(target.iterdir())):
        _refuse_existing(target, "--to" if unpack else "--output", force=force)
    path = _built(client, full_id, form.built) if form.built else path_of("runs", full_id, f"/{ARCHIVE_FILE}")
    if unpack:
        _download_folder(client, path, target)
    else:
        client.download(path, target)
    return target


def _built(client: Client, run_id: str, form: str) -> str:
    """The download of a form, which the server builds if it does not have it yet; shows the progress."""
    for output in client.get(path_of("runs", run_id, "/outputs"))["outputs"]:
        if output["form"] == form and output["address"]:
            return str(output["address"])
    build, screen = client.send("POST", path_of("runs", run_id, f"/builds/{form}")), screen_for(sys.stderr)
    while not Status(build["status"]).ended:
        screen.update(building(build), build["phase"] or build["status"])
        time.sleep(POLL_SECONDS)
        build = client.get(path_of("runs", run_id, f"/builds/{build['form']}"))
    screen.close()
    if build["error"]:
        raise CommandError(*(build["error"][name] for name in ("field", "value", "message", "fix")))
    if not build["address"]:
        raise CommandError("RUN", run_id, f"the build of {form} was stopped.", "Start it again.")
    for note in build["notes"].splitlines():
        click.echo(note, err=True)
    return str(build["address"])


def _download_folder(client: Client, path: str, target: Path) -> None:
    """Downloads a zip and unpacks it as the folder `target`, which is replaced."""
    with TemporaryDirectory(dir=target.absolute().parent, prefix=".lathe-") as folder:
        packed, part = Path(folder, "result.zip"), Path(folder, "result")
        client.download(path, packed)
        with ZipFile(packed) as zipped:
            zipped.extractall(part)
        if target.is_dir():
            shutil.rmtree(target)
        part.replace(target)


def _run(run_id: str) -> Run:
    ready()
    with database.read() as session:
        return runs.get(session=session, run_id=run_id)


def _tell(target: Path, *, as_json: bool) -> None:
    files = [target] if target.is_file() else [file for file in target.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    place = "file" if target.is_file() else "folder"
    message = f"Wrote {target} ({byte_size(size)})."
    click.echo(json.dumps({place: str(target), "bytes": size}) if as_json else message)


def _copy_zip(run: Run, folder: Path, output: Path | None, *, merged: bool, force: bool) -> Path:
    assert output is not None
    name = f"{run.id}{'-merged' if merged else ''}.zip"
    packed = folder.parent / (MERGED_FILE if merged else ARCHIVE_FILE)
    if packed.is_file():
        return _copy_file(packed, output, name, force=force)
    target = output / name if output.is_dir() else output
    _refuse_existing(target, "--output", force=force)
    packing.pack(folder, target)
    return target


def _copy_file(source: Path, output: Path | None, name: str, *, force: bool) -> Path:
    assert output is not None
    target = output / name if output.is_dir() else output
    _refuse_existing(target, "--output", force=force)
    with whole_file(target) as part:
        shutil.copyfile(source, part)
    return target


def _copy_folder(folder: Path, target: Path, *, force: bool) -> Path:
    if not (target.is_dir() and not any(target.iterdir())):
        _refuse_existing(target, "--to", force=force)
    with whole_folder(target) as part:
        shutil.copytree(folder, part)
        if target.is_dir():
            shutil.rmtree(target)
    return target


def _refuse_existing(target: Path, option: str, *, force: bool) -> None:
    if target.exists() and not force:
        fix = "Choose another name, or replace it with --force."
        raise CommandError(option, str(target), "already exists.", fix)


_NOT_EQUAL = 1


def verify(run_id: str, forms: Sequence[str], *, as_json: bool) -> None:
    """Prints each form as it is compared. Exits with 1 if one differs from what was trained."""
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)
        session.expunge(run)
    try:
        for form in verification.verify(run, forms):
            if not as_json:
                _tell_form(form)
    except NoResult as error:
        raise CommandError("RUN", run_id, error.message, error.fix) from None
    found = verification.latest(run) or {}
    if as_json:
        click.echo(json.dumps(found))
    else:
        click.echo(f"Compared with the trained model on {found['rows']} rows.")
    if not found.get("equal"):
        raise click.exceptions.Exit(_NOT_EQUAL)


def _tell_form(form: dict[str, Any]) -> None:
    click.echo(f"{form['form']:12}  {figures(form)}")
    if text := difference(form):
        click.echo(f"{'':12}  {text}")
