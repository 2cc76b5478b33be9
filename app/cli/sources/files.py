"""Results and archives of runs, which are downloaded from the server or sent to it."""

import shutil
import tempfile
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from app.cli.options import ready
from app.cli.sources.server import Server, chosen, run_path

_SECONDS = 1800.0


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
            run = server.send("POST", "/api/archives", content=body, headers=headers, seconds=_SECONDS)
        return {name: run[name] for name in ("id", "name")}
    from worker.runs import restore
    from worker.settings import get_settings

    ready()
    get_settings().make_folders()
    stored = restore.restore(archive)
    return {"id": stored.id, "name": stored.name}
