"""Imports of data sets from the server's folders and the hub, in the background, for pages and REST."""

import os

from app.access import callers
from app.access.intake import intakes
from worker.datasets import datasets, folders, hub
from worker.settings import get_settings
from worker.store.tables import Dataset


def from_folder(name: str) -> int:
    """Imports a copy of a file in an allowed folder; returns the import's id.

    Raises:
        DataError: the file does not exist, or is in no allowed folder.
    """
    path, owner = folders.resolve(name), callers.current().name  # the thread that reads the file has no caller

    def add() -> list[Dataset]:
        return [datasets.add_file(path=path, name=path.name, owner=owner)]

    return intakes.begin(name, path.stat().st_size, add, owner=owner)


def from_hub(dataset_id: str, split: str, config: str, revision: str) -> int:
    """Downloads a data set from the hub and imports it; returns the import's id. Empty texts stand for the defaults."""
    owner, chosen = callers.current().name, split or "train"

    def add() -> list[Dataset]:
        path = hub.fetch(dataset_id, chosen, config or None, revision or None, owner)
        ending = "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix
        name = f"{dataset_id.replace('/', '-')}-{chosen}{ending}"
        return [datasets.add_file(path=path, name=name, move=True, owner=owner)]

    return intakes.begin(dataset_id, 0, add, owner=owner)


def folder_choices() -> list[str]:
    """Files in the allowed folders."""
    return [str(name) for name in folders.listing()]


def folder_reason() -> str:
    """Why no file of the server can be imported; empty if files can be."""
    if get_settings().data_folders:
        return ""
    return "This server has no data folders. Set LATHE_DATA_FOLDERS and restart Lathe."


def hub_reason() -> str:
    """Why the hub cannot be used; empty if it can be."""
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return "This server works offline (HF_HUB_OFFLINE is set). Upload the file instead."
    return ""
