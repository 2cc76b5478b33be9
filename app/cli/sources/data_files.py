"""Files between this machine and the server: what a run there needs is sent first, results and archives are downloaded."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from app.cli.options import ready
from app.cli.sources.server import Server, chosen, run_path
from app.cli.terminal import clear_line
from app.words import numbers
from training.config.data_sets import FIELDS, Source, canonical, sources, written
from training.config.run_config import RunConfig
from training.units import byte_size
from worker.allowed_paths import EVERYTHING, find_path
from worker.runs.config_files import deepspeed_text, template_text, with_deepspeed_file, with_template_file

_CHUNK = 2**20
_SECONDS = 1800.0
"""The longest time that the server may take to check a file."""

_RESULT_SECONDS = 1800.0


def sent(server: Server, config: RunConfig) -> RunConfig:
    """The configuration with the ids of data sets on the server in place of this machine's files, which are sent."""
    if config.deepspeed_config and (path := find_path(config.deepspeed_config)) and path.is_file():
        config = with_deepspeed_file(config, EVERYTHING)
    if config.chat_template and (path := find_path(config.chat_template)) and path.is_file():
        config = with_template_file(config, EVERYTHING)
    return config.model_copy(update=_sent_data(server, {field: getattr(config, field) for field in FIELDS}))


def sent_values(server: Server, values: dict[str, Any]) -> dict[str, Any]:
    """The same for settings that are not checked yet, as a file gives them."""
    text = {
        name: read(path)
        for name, read in {"deepspeed_config": deepspeed_text, "chat_template": template_text}.items()
        if values.get(name) and (path := find_path(str(values[name]))) and path.is_file()
    }
    return values | text | _sent_data(server, {field: canonical(values.get(field)) for field in FIELDS})


def _sent_data(server: Server, named: dict[str, Any]) -> dict[str, str]:
    """The settings that name files of this machine, with the ids of the data sets on the server."""
    changes: dict[str, str] = {}
    for field, text in named.items():
        before = sources(text)
        known = [_sent(server, source, several=len(before) > 1) for source in before]
        if known != list(before):
            changes[field] = written(known)
    return changes


def upload(server: Server, file: Path, name: str, columns: str | None = None) -> dict[str, Any]:
    """Sends a file, with its progress on stderr, and returns its data set."""
    params = {"name": name, "columns": columns}
    with file.open("rb") as stream:
        size = file.stat().st_size
        headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
        body = _parts(stream, name, size)
        return dict(
            server.send("POST", "/api/datasets", content=body, headers=headers, params=params, seconds=_SECONDS)
        )


def upload_together(server: Server, files: tuple[Path, ...]) -> dict[str, Any]:
    """Sends several files, which become one data set, and returns it."""
    streams = [file.open("rb") for file in files]
    try:
        form = [("file", (file.name, stream)) for file, stream in zip(files, streams, strict=True)]
        return dict(server.send("POST", "/api/datasets", files=form, seconds=_SECONDS))
    finally:
        for stream in streams:
            stream.close()


def sent_file(server: Server, value: str) -> str:
    """The id of a data set on the server for a file of this machine, which is sent; another value as it is."""
    path = find_path(value)
    return value if path is None or not path.is_file() else str(upload(server, path, path.name)["id"])


def _sent(server: Server, source: Source, *, several: bool) -> Source:
    path = find_path(source.path)
    if path is None or not path.is_file():
        return source  # a data set or a file of the server
    stored = upload(server, path, path.name)
    return replace(source, path=stored["id"], name=source.name or (path.name if several else ""))


def _parts(stream: Any, name: str, size: int) -> Iterator[bytes]:
    live, done = sys.stderr.isatty(), 0
    while chunk := stream.read(_CHUNK):
        yield chunk
        done += len(chunk)
        if live:
            share = f"{numbers.bar(done / size, 24)} {byte_size(done)} of {byte_size(size)}"
            clear_line(sys.stderr)
            sys.stderr.write(f"{name}: {share}")
    if live:
        clear_line(sys.stderr)
    else:
        sys.stderr.write(f"{name}: {byte_size(size)} sent.\n")
    sys.stderr.flush()


def result(server: Server, run_id: str, target: Path, name: str, *, unpack: bool) -> None:
    """Downloads a run's result, `name`, into the file `target`, or unpacked as the folder `target`, which is replaced."""
    path = run_path(run_id, f"/{name}")
    if not unpack:
        server.download(path, target)
        return
    with tempfile.TemporaryDirectory(dir=target.absolute().parent, prefix=".lathe-") as folder:
        packed, part = Path(folder, "result.zip"), Path(folder, "result")
        server.download(path, packed)
        with ZipFile(packed) as source:
            source.extractall(part)
        if target.is_dir():
            shutil.rmtree(target)
        part.replace(target)


def restored(archive: Path) -> dict[str, Any]:
    """Imports a run from its archive; returns its id and name.

    Raises:
        BadArchive, ServerError: the file is not the archive of a run.
    """
    if server := chosen():
        headers = {"Content-Length": str(archive.stat().st_size), "Content-Type": "application/octet-stream"}
        with archive.open("rb") as body:
            run = server.send("POST", "/api/archives", content=body, headers=headers, seconds=_RESULT_SECONDS)
        return {name: run[name] for name in ("id", "name")}
    from worker.runs import restore
    from worker.settings import get_settings

    ready()
    get_settings().make_folders()
    stored = restore.restore(archive)
    return {"id": stored.id, "name": stored.name}
