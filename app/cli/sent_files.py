"""Files of this machine that a server needs: they are sent first, and their data sets named in their place."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.cli.client import Client
from app.cli.options import Progress
from training.config.data_sets import FIELDS, Source, canonical, sources, written
from training.config.run_config import RunConfig
from training.units import byte_size
from worker.allowed_paths import find_path
from worker.runs.settle import FILES, text_of

_CHUNK = 2**20
_SECONDS = 1800.0
"""The longest time that a server may take to check a file."""


def settings(client: Client, config: RunConfig) -> dict[str, Any]:
    """The settings of a run as the client sends them: a server gets the text of files, and the ids of data sets that are sent."""
    return values(client, config.model_dump(mode="json", exclude_unset=True))


def values(client: Client, settings: dict[str, Any]) -> dict[str, Any]:
    """The same for settings that are not checked yet, as a file gives them."""
    if not client.remote:
        return settings
    texts = {field: text_of(field, settings[field]) for field in FILES if _file(settings.get(field))}
    return settings | texts | _data(client, {field: canonical(settings.get(field)) for field in FIELDS})


def data(client: Client, value: str) -> str:
    """The id of the data set of a file, which is sent to a server; another value as it is."""
    path = _file(value) if client.remote else None
    return str(_sent(client, path)["id"]) if path else value


def upload(client: Client, path: str, *files: Path, **params: Any) -> dict[str, Any]:
    """Sends files to a route, one with its progress on stderr, and returns the answer; in this process, names them only."""
    if not client.remote:
        return dict(client.send("POST", path, params=params, files=files))
    with _body(files) as body:
        return dict(client.send("POST", path, params=params, seconds=_SECONDS, **body))


@contextmanager
def _body(files: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """The body of a request with files: one as it is, with its progress on stderr, or a form."""
    with ExitStack() as opened:
        streams = [opened.enter_context(file.open("rb")) for file in files]
        if len(files) > 1:
            yield {"files": [("file", (file.name, stream)) for file, stream in zip(files, streams, strict=True)]}
            return
        size = files[0].stat().st_size
        headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
        yield {"content": _parts(streams[0], files[0].name, size), "headers": headers}


def _data(client: Client, named: dict[str, Any]) -> dict[str, str]:
    """The settings that name files of this machine, with the ids of the data sets on the server."""
    changes: dict[str, str] = {}
    for field, text in named.items():
        before = sources(text)
        after = [_stored(client, source, several=len(before) > 1) for source in before]
        if after != list(before):
            changes[field] = written(after)
    return changes


def _stored(client: Client, source: Source, *, several: bool) -> Source:
    path = _file(source.path)
    if path is None:
        return source  # a data set or a file of the server
    return replace(source, path=_sent(client, path)["id"], name=source.name or (path.name if several else ""))


def _sent(client: Client, path: Path) -> dict[str, Any]:
    return upload(client, "/api/datasets", path, name=path.name)


def _file(value: Any) -> Path | None:
    """The file of this machine that a setting names."""
    path = find_path(str(value)) if value else None
    return path if path and path.is_file() else None


def _parts(stream: Any, name: str, size: int) -> Iterator[bytes]:
    line, done = Progress(name), 0
    while chunk := stream.read(_CHUNK):
        yield chunk
        done += len(chunk)
        line.show(done / size, f"{byte_size(done)} of {byte_size(size)}")
    line.close(f"{byte_size(size)} sent.")
