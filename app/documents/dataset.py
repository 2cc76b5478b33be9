"""A data set as a dictionary, which `lathe dataset --json` prints and REST returns. Read-only."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

from sqlmodel import Session, col, select

from training.data.inspection import Inspection
from worker.datasets import datasets
from worker.datasets.datasets import DatasetNotFound
from worker.store import uses
from worker.store.tables import Dataset
from worker.store.uses import DatasetUse

BRIEF = ("id", "name", "owner", "rows", "bytes", "created_at")
_WHOLE = (*BRIEF, "sha256", "reason", "counts", "columns", "warnings")
_INSPECTED = (
    "file_format", "format", "reason", "rows", "columns", "counts", "empty_rows", "trainable", "suggestion", "unused",
)  # fmt: skip
SHORTEST_ID = 4


def brief(item: Dataset, users: Sequence[DatasetUse]) -> dict[str, Any]:
    """A data set in a list: `format` is the format of its rows, `used_by` a number of runs, times in epoch seconds."""
    kinds = {"format": item.shape, "file_format": item.format}
    return (
        item.model_dump(include=set(BRIEF)) | kinds | {"used_by": len(users), "warning_kinds": len(item.warnings or [])}
    )


def listing(session: Session, search: str, limit: int, offset: int = 0) -> list[dict[str, Any]]:
    """The matching data sets from `offset` on, newest first, each as in `brief`."""
    users = uses.dataset_users(session=session)
    matching = (item for item in datasets.listing(session=session) if matches(item, search))
    return [brief(item, users.get(item.id, ())) for item in islice(matching, offset, offset + limit)]


def count(session: Session, search: str) -> int:
    """The number of matching data sets."""
    return sum(matches(item, search) for item in datasets.listing(session=session))


def matches(item: Dataset, search: str) -> bool:
    """True if every word of `search` is in the name, the format or the id."""
    text = f"{item.name} {item.shape} {item.format} {item.id}".lower()
    return all(word in text for word in search.lower().split())


def document(session: Session, dataset_id: str) -> dict[str, Any]:
    """A data set with the runs that use it, newest first.

    Raises:
        DatasetNotFound: no data set has this id, or several begin with it.
    """
    item = find(session, dataset_id)
    users = uses.dataset_users(session=session).get(item.id, [])
    kinds = {"format": item.shape, "file_format": item.format, "columns_map": item.columns_map}
    runs = [{"id": user.id, "name": user.name, "status": user.status.value} for user in users]
    more = {"unused_columns": datasets.unused(item), "runs": runs, "sample": item.sample}
    return item.model_dump(mode="json", include=set(_WHOLE)) | kinds | more


def inspected(inspection: Inspection) -> dict[str, Any]:
    """What the check of a file has found."""
    values = {name: getattr(inspection, name) for name in _INSPECTED}
    return values | {"problems": [asdict(problem) for problem in inspection.problems]}


def find(session: Session, dataset_id: str) -> Dataset:
    """The data set with this id, or the only one whose id begins with it.

    Raises:
        DatasetNotFound: none or several match.
    """
    matching: Sequence[Dataset] = []
    if len(dataset_id) >= SHORTEST_ID:
        begins = col(Dataset.id).startswith(dataset_id, autoescape=True)
        matching = session.exec(select(Dataset).where(begins).limit(2)).all()
    if len(matching) == 1:
        return matching[0]
    message = "is the beginning of several ids." if matching else "does not exist."
    raise DatasetNotFound("dataset", dataset_id, message, "`lathe dataset list` lists all data sets.")
