"""The data of a run on its way in: found, taken into the store, seen to train under the run's mapping; and found again later."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlmodel import Session

from training.config import Task
from training.failure import DataError
from training.fields import ConfigError, Problem
from training.formats import UNKNOWN, UNKNOWN_FIX
from training.mapping import format_of, parse_mapping
from training.parts import misfit, tasks_of
from worker import database, datasets
from worker.datasets import DatasetNotFound
from worker.models import LOCAL, Dataset
from worker.reach import Reach

FIELDS = ("data", "validation_data")
DATASET_ID = re.compile(r"[0-9a-f]{16}")
_FIX = "Give a JSON, JSONL, CSV, TSV, text or Parquet file, or pick a data set that was uploaded."


def find(field: str, value: str | None, reach: Reach, problems: list[Problem]) -> Dataset | Path | None:
    """The data set or file that a setting names; None, and a problem more, where it names none that may be read."""
    if not value:
        return None
    if DATASET_ID.fullmatch(value):
        with database.read() as session:
            known = session.get(Dataset, value)
        if known is not None and datasets.path_of(known).is_file():
            return known
    path = reach.find(value)
    if path is None:
        everything = reach.data is None
        what = "is neither a file nor the id of a data set." if everything else "is not the id of a data set."
        fix = (
            "Upload the file first, then pick it. Files are read only below the folders that LATHE_DATA_FOLDERS names."
        )
        problems.append(Problem(field, value, what, _FIX if everything else fix))
    return path


@contextmanager
def stored(
    found: dict[str, Dataset | Path | None], columns: str | None, owner: str = LOCAL
) -> Iterator[dict[str, Dataset]]:
    """The data sets, with files taken into the store; those that are new are taken out again where the run is not made."""
    stored: dict[str, Dataset] = {}
    new: list[str] = []
    try:
        for field, data in found.items():
            if isinstance(data, Path):
                added = _add(field, data, columns, owner)
                stored[field] = added.dataset
                new += [added.dataset.id] if added.new else []
            elif data is not None:
                stored[field] = data
        yield stored
    except BaseException:
        with database.write() as session:
            for dataset_id in new:
                datasets.delete(session=session, dataset_id=dataset_id)
        raise


def _add(field: str, path: Path, columns: str | None, owner: str) -> datasets.Added:
    try:
        return datasets.add(path=path, name=path.name, columns=columns, owner=owner)
    except DataError as error:
        raise ConfigError([_problem(field, str(path), error)]) from None


def check(stored: dict[str, Dataset], columns: str | None, task: Task) -> None:
    """Sees that the data can train the task, under the run's mapping where there is one.

    Raises:
        ConfigError: it cannot; one problem a data set.
    """
    problems = []
    for field, data in stored.items():
        try:
            datasets.check_mapping(data, columns)
            if not columns and data.shape == UNKNOWN:
                raise DataError(f"has columns of no known format: {', '.join(data.columns)}.", UNKNOWN_FIX)
            shape = format_of(parse_mapping(columns)) if columns else data.shape
            if lack := misfit(task, shape):
                fits = ", ".join(one.value for one in tasks_of(shape))
                raise DataError(lack, f"Choose another data set, or a task that it fits: {fits}.")
        except DataError as error:
            problems.append(_problem(field, data.name, error))
    if problems:
        raise ConfigError(problems)


def _problem(field: str, value: str, error: DataError) -> Problem:
    place = ", ".join(part for part in (f"row {error.line}" if error.line else "", error.field) if part)
    return Problem(field, value, f"{place} {error.message}".strip(), error.fix)


def path(session: Session, field: str, dataset_id: str, problems: list[Problem]) -> str | None:
    try:
        path = datasets.path_of(datasets.get(session=session, dataset_id=dataset_id))
    except DatasetNotFound:
        problems.append(Problem(field, dataset_id, "was deleted.", "Clone the run and give other data."))
        return None
    if not path.is_file():
        message = f"is not on this machine ({path})."
        problems.append(Problem(field, dataset_id, message, "All workers need the same data folder; mount it here."))
    return str(path)
