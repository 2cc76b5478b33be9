"""A data set as a plain dictionary: what `lathe dataset --json` prints and REST answers. Read-only."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

from sqlmodel import Session, col, select

from worker import datasets, usage
from worker.datasets import DatasetNotFound
from worker.models import Dataset
from worker.usage import User

_BRIEF = ("id", "name", "owner", "rows", "bytes", "created_at")
_WHOLE = (*_BRIEF, "sha256", "reason", "counts", "columns", "warnings")
SHORTEST_ID = 4


def brief(item: Dataset, users: Sequence[User]) -> dict[str, Any]:
    """A data set as a list has it: `format` is that of its rows, `used_by` a number of runs, times are seconds since the epoch."""
    kinds = {"format": item.shape, "file_format": item.format}
    return (
        item.model_dump(include=set(_BRIEF))
        | kinds
        | {"used_by": len(users), "warning_kinds": len(item.warnings or [])}
    )


def listing(session: Session, search: str, limit: int) -> list[dict[str, Any]]:
    """The data sets that match, newest first, each as `brief` tells it."""
    users = usage.users(session=session)
    known = (item for item in datasets.listing(session=session) if matches(item, search))
    return [brief(item, users.get(item.id, ())) for item in islice(known, limit)]


def matches(item: Dataset, search: str) -> bool:
    """Whether every word that was typed is in the name, the format or the id."""
    told = f"{item.name} {item.shape} {item.format} {item.id}".lower()
    return all(word in told for word in search.lower().split())


def document(session: Session, dataset_id: str) -> dict[str, Any]:
    """What is known of a data set, with the runs that use it, newest first.

    Raises:
        DatasetNotFound: no data set has this id, or several begin with it.
    """
    item = find(session, dataset_id)
    users = usage.users(session=session).get(item.id, [])
    kinds = {"format": item.shape, "file_format": item.format, "columns_map": item.columns_map}
    runs = [{"id": user.id, "name": user.name, "status": user.status.value} for user in users]
    return item.model_dump(mode="json", include=set(_WHOLE)) | kinds | {"runs": runs, "sample": item.sample}


def find(session: Session, dataset_id: str) -> Dataset:
    """The data set with that id, or the only one whose id begins so.

    Raises:
        DatasetNotFound: there is none, or there are several.
    """
    found: Sequence[Dataset] = []
    if len(dataset_id) >= SHORTEST_ID:
        begins = col(Dataset.id).startswith(dataset_id, autoescape=True)
        found = session.exec(select(Dataset).where(begins).limit(2)).all()
    if len(found) == 1:
        return found[0]
    told = "Several data sets begin with" if found else "No data set has"
    raise DatasetNotFound(f"{told} the id {dataset_id!r}. `lathe dataset list` lists them all.")
