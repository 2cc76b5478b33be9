"""Data sets, of the local store or the server."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

from app.cli.options import ready
from app.cli.sources.runs import pages
from app.cli.sources.server import chosen


def listing(search: str, limit: int) -> list[dict[str, Any]]:
    """The data sets, newest first, as `lathe dataset list --json` prints them."""
    if server := chosen():
        return pages(server, "/api/datasets", "datasets", limit, search=search)
    from app.documents import dataset
    from worker.store import database

    ready()
    with database.read() as session:
        return dataset.listing(session, search, limit)


def document(dataset_id: str) -> dict[str, Any]:
    """One data set, as `lathe dataset show --json` prints it.

    Raises:
        DatasetNotFound, ServerError: no data set has this id.
    """
    if server := chosen():
        return dict(server.get(f"/api/datasets/{quote(dataset_id, safe='')}"))
    from app.documents import dataset
    from worker.store import database

    ready()
    with database.read() as session:
        return dataset.document(session, dataset_id)


def add(files: tuple[Path, ...], name: str | None, columns: str | None) -> dict[str, Any]:
    """Imports a file, or several as one data set, and returns it.

    Raises:
        DataError, ServerError: a file has errors; nothing is stored.
    """
    if server := chosen():
        from app.cli.sources.data_files import upload, upload_together

        if len(files) == 1:
            return upload(server, files[0], name or files[0].name, columns)
        return upload_together(server, files)
    from worker.datasets import datasets
    from worker.settings import get_settings

    ready()
    get_settings().make_folders()
    if len(files) == 1:
        item = datasets.add(path=files[0], name=name or files[0].name, columns=columns).dataset
    else:
        item = datasets.add_many(paths=list(files), names=[file.name for file in files])
    if columns and item.columns_map != columns:  # the file was already stored
        item = datasets.save_mapping(item.id, columns)
    return document(item.id)


def remove(dataset_id: str) -> None:
    """Deletes the data set with this full id.

    Raises:
        DatasetInUse, ServerError: a run still needs it.
    """
    if server := chosen():
        server.send("DELETE", f"/api/datasets/{dataset_id}")
        return
    from app.access import changes

    changes.remove_dataset(dataset_id)
