"""Where data sets come from: uploads, folders of the server, the hub, the sample. Each hands its files to the intake."""

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from app import callers
from app.pages import data
from app.pages.intake import intakes
from worker import datasets, folders, hub
from worker.models import Dataset
from worker.settings import get_settings

ONE_SET, PAIR, APART = "one set", "training and validation", "a set each"
WAYS = [ONE_SET, PAIR, APART]

_HELD_OUT = re.compile(r"(^|[^a-z])(val|valid|validation|eval|evaluation|dev|test|held-?_?out)([^a-z]|$)")


def take_uploads(paths: Sequence[Path], way: str) -> None:
    """Has uploaded files checked: as one set, as training and validation data, or each by itself. They are gone afterwards."""
    owner = callers.current().name  # asked here: the thread that reads the file has no caller
    if len(paths) > 1 and way == ONE_SET:
        _begin(paths, lambda: [_many(paths, owner)], owner)
    elif len(paths) == 2 and way == PAIR:
        first, second = in_order(paths)
        _begin((first, second), lambda: [_one(first, owner), _one(second, owner)], owner, paired=True)
    else:
        for path in paths:
            _begin([path], partial(_alone, path, owner), owner)


def in_order(paths: Sequence[Path]) -> list[Path]:
    """Training data first, validation data second: told by their names, else the larger file is for training."""

    def key(path: Path) -> tuple[bool, int]:
        return bool(_HELD_OUT.search(path.stem.lower())), -path.stat().st_size

    return sorted(paths, key=key)


def take_from_folder(name: str) -> None:
    """Has a file of an allowed folder copied and checked."""
    path, owner = folders.resolve(name), callers.current().name
    intakes.begin(name, path.stat().st_size, lambda: [_copied(path, owner)], owner=owner)


def take_from_hub(dataset_id: str, split: str, config: str, revision: str) -> None:
    """Has a data set of the hub downloaded and checked."""

    owner = callers.current().name

    def take() -> list[Dataset]:
        path = hub.fetch(dataset_id, split or "train", config or None, revision or None)
        ending = "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix
        name = f"{dataset_id.replace('/', '-')}-{split}{ending}"
        return [datasets.add_file(path=path, name=name, move=True, owner=owner)]

    intakes.begin(dataset_id, 0, take, owner=owner)


def take_sample() -> None:
    """Has the data that comes with the program taken in: training and held-out rows."""
    train, *held_out = data.samples()
    owner = callers.current().name

    def take() -> list[Dataset]:
        return [_copied(path, owner) for path in (train, *held_out)]

    intakes.begin("The starter sample", train.stat().st_size, take, paired=True, owner=owner)


def folder_choices() -> list[str]:
    """Files in the allowed folders."""
    return [str(name) for name in folders.listing()]


def folder_reason() -> str:
    """Why no folder of the server can be picked from; empty where one can."""
    if get_settings().data_folders:
        return ""
    return "No folder of this server may be read yet. Name some in LATHE_DATA_FOLDERS, and start Lathe again."


def hub_reason() -> str:
    """Why the hub cannot be asked; empty where it may be tried."""
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return "This server is set to work offline (HF_HUB_OFFLINE), so the hub is not asked. Upload the file instead."
    return ""


def _begin(paths: Sequence[Path], take: Callable[[], Sequence[Dataset]], owner: str, *, paired: bool = False) -> None:
    names = " + ".join(path.name for path in paths)
    intakes.begin(names, sum(path.stat().st_size for path in paths), take, paired=paired, owner=owner)


def _alone(path: Path, owner: str) -> list[Dataset]:
    return [_one(path, owner)]


def _one(path: Path, owner: str) -> Dataset:
    try:
        return datasets.add_file(path=path, name=path.name, move=True, owner=owner)
    finally:
        _leave(path)


def _many(paths: Sequence[Path], owner: str) -> Dataset:
    try:
        return datasets.add_many(paths=paths, names=[path.name for path in paths], owner=owner)
    finally:
        for path in paths:
            path.unlink(missing_ok=True)
            _leave(path)


def _copied(path: Path, owner: str) -> Dataset:
    return datasets.add_file(path=path, name=path.name, owner=owner)


def _leave(path: Path) -> None:
    with suppress(OSError):  # another upload of the same bytes may still be in its folder
        path.parent.rmdir()
