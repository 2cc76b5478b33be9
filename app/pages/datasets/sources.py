"""Imports of data sets from uploads and the sample."""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from app.access import callers
from app.access.intake import intakes
from app.pages.common import upload_box
from worker.datasets import datasets
from worker.store.tables import Dataset

ONE_SET, PAIR, SEPARATE = "one data set", "training + validation", "separate data sets"
WAYS = [ONE_SET, PAIR, SEPARATE]

_HELD_OUT = re.compile(r"(^|[^a-z])(val|valid|validation|eval|evaluation|dev|test|held-?_?out)([^a-z]|$)")


def import_uploads(paths: Sequence[Path], way: str) -> None:
    """Imports uploaded files as one data set, as training and validation data, or separately, and deletes the uploads."""
    owner = callers.current().name  # the thread that reads the file has no caller
    if len(paths) > 1 and way == ONE_SET:
        _begin(paths, lambda: [_many(paths, owner)], owner)
    elif len(paths) == 2 and way == PAIR:
        first, second = in_order(paths)
        _begin((first, second), lambda: [_one(first, owner), _one(second, owner)], owner, paired=True)
    else:
        for path in paths:
            _begin([path], partial(_separate, path, owner), owner)


def in_order(paths: Sequence[Path]) -> list[Path]:
    """Training data, then validation data: by their names, else the larger file is training data."""

    def key(path: Path) -> tuple[bool, int]:
        return bool(_HELD_OUT.search(path.stem.lower())), -path.stat().st_size

    return sorted(paths, key=key)


def import_sample() -> None:
    """Imports the sample data: training and held-out rows."""
    train, *held_out = upload_box.samples()
    owner = callers.current().name

    def add() -> list[Dataset]:
        return [datasets.add_file(path=path, name=path.name, owner=owner) for path in (train, *held_out)]

    intakes.begin("Starter sample", train.stat().st_size, add, paired=True, owner=owner)


def _begin(paths: Sequence[Path], add: Callable[[], Sequence[Dataset]], owner: str, *, paired: bool = False) -> None:
    names = " + ".join(path.name for path in paths)
    intakes.begin(names, sum(path.stat().st_size for path in paths), add, paired=paired, owner=owner)


def _separate(path: Path, owner: str) -> list[Dataset]:
    return [_one(path, owner)]


def _one(path: Path, owner: str) -> Dataset:
    try:
        return datasets.add_file(path=path, name=path.name, move=True, owner=owner)
    finally:
        _remove_folder(path)


def _many(paths: Sequence[Path], owner: str) -> Dataset:
    try:
        return datasets.add_many(paths=paths, names=[path.name for path in paths], owner=owner)
    finally:
        for path in paths:
            path.unlink(missing_ok=True)
            _remove_folder(path)


def _remove_folder(path: Path) -> None:
    with suppress(OSError):  # the folder may hold another upload of the same bytes
        path.parent.rmdir()
