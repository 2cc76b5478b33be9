"""Data sets: in a list, one with its warnings and users, the check of a file, and imports. Read-only."""

from collections.abc import Sequence
from itertools import islice
from typing import Literal

from pydantic import Field
from sqlmodel import Session, col, select

from app.documents import Document, Stored, columns
from training.data.survey import Issue
from worker.datasets import datasets
from worker.datasets.datasets import DatasetNotFound
from worker.store import database, uses
from worker.store.runs import LONGEST_ID, SHORTEST_ID
from worker.store.tables import Dataset
from worker.store.uses import DatasetUse

_BRIEF = ("id", "name", "owner", "rows", "bytes", "created_at")
_WHOLE = (*_BRIEF, "sha256", "reason", "counts", "columns", "columns_map", "sample")


@columns(Dataset, _BRIEF)
class DatasetInList(Stored):
    """A data set in a list. `used_by` is the number of runs that use it, `warning_kinds` that of its kinds of warnings."""

    format: str = Field(description="format of the rows, such as messages or prompt/completion; unknown if none fits")
    file_format: str
    used_by: int
    warning_kinds: int


class DatasetList(Document):
    """The data sets that match, newest first, and how many match in all."""

    datasets: list[DatasetInList]
    total: int


@columns(DatasetUse)
class User(Document):
    """A run that uses a data set; of a run that the caller does not see, only its status."""


@columns(Dataset, _WHOLE)
class DatasetAnswer(Stored):
    """A data set with its warnings, its first rows and the runs that use it, newest first."""

    format: str = Field(description="format of the rows, such as messages or prompt/completion; unknown if none fits")
    file_format: str
    warnings: list[Issue]
    unused_columns: list[str] = Field(description="columns that training does not use")
    runs: list[User]


class Check(Document):
    """The report on a file; nothing was stored. `suggestion` is a column mapping that fits the first rows, if one does."""

    file_format: str
    format: str
    reason: str
    rows: int
    columns: list[str]
    counts: dict[str, int] = Field(description="rows of each format")
    empty_rows: int
    trainable: bool = Field(description="true if there are no errors")
    suggestion: str
    unused: list[str] = Field(description="columns that training does not use")
    problems: list[Issue]


class ImportProblem(Document):
    """Why an import was refused: the file, the first row (`line`, from 1), and the number of rows with this problem."""

    level: str
    message: str
    fix: str
    file: str | None = None
    line: int | None = None
    field: str | None = None
    rows: int | None = None


class Added(Document):
    """A data set that an import stored."""

    id: str
    name: str


class ImportAnswer(Document):
    """An import in the background. It stays listed for two minutes after it is done, and for an hour if it was refused."""

    id: int
    name: str
    owner: str
    state: Literal["checking", "done", "refused"]
    bytes: int = Field(description="size of the file; 0 if it is not known yet")
    since: float = Field(description="seconds since the epoch")
    problems: list[ImportProblem]
    datasets: list[Added]


class ImportList(Document):
    """The imports of this server, oldest first."""

    imports: list[ImportAnswer]


class Files(Document):
    """The files of the server that can be imported; `reason` tells why there can be none."""

    files: list[str]
    reason: str


def brief(item: Dataset, users: Sequence[DatasetUse]) -> DatasetInList:
    """A data set in a list."""
    return DatasetInList(
        **item.shown(*_BRIEF),
        format=item.row_format,
        file_format=item.format,
        used_by=len(users),
        warning_kinds=len(item.warnings),
    )


def listing(session: Session, search: str, limit: int, offset: int = 0) -> DatasetList:
    """The matching data sets from `offset` on, newest first."""
    users = uses.dataset_users(session=session)
    matching = [item for item in datasets.listing(session=session) if matches(item, search)]
    shown = [brief(item, users.get(item.id, ())) for item in islice(matching, offset, offset + limit)]
    return DatasetList(datasets=shown, total=len(matching))


def matches(item: Dataset, search: str) -> bool:
    """True if every word of `search` is in the name, the format or the id."""
    text = f"{item.name} {item.row_format} {item.format} {item.id}".lower()
    return all(word in text for word in search.lower().split())


def document(session: Session, dataset_id: str) -> DatasetAnswer:
    """A data set with the runs that use it, newest first.

    Raises:
        DatasetNotFound: no data set has this id, or several begin with it.
    """
    item = find(session, dataset_id)
    users = uses.dataset_users(session=session).get(item.id, [])
    return DatasetAnswer(
        **item.shown(*_WHOLE),
        format=item.row_format,
        file_format=item.format,
        warnings=item.warnings,
        unused_columns=datasets.unused(item),
        runs=[User.model_validate(user) for user in users],
    )


def stored(dataset_id: str) -> Dataset:
    """As `find`, in a session of its own."""
    with database.read() as session:
        return find(session, dataset_id)


def find(session: Session, dataset_id: str) -> Dataset:
    """The data set with this id, or the only one whose id begins with it.

    Raises:
        DatasetNotFound: none or several match.
    """
    matching: Sequence[Dataset] = []
    if SHORTEST_ID <= len(dataset_id) <= LONGEST_ID:
        begins = col(Dataset.id).startswith(dataset_id, autoescape=True)
        matching = session.exec(select(Dataset).where(begins).limit(2)).all()
    if len(matching) == 1:
        return matching[0]
    message = "is the beginning of several ids." if matching else "does not exist."
    raise DatasetNotFound("dataset", dataset_id, message, "`lathe dataset list` lists all data sets.")
