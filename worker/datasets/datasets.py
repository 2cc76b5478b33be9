"""Data sets: checked files (worker/datasets/checking.py), stored once per content under an id."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, or_
from sqlmodel import Session, col, select

from training.config.data_sets import FIELDS
from training.data.files.formats import file_format
from training.data.inspection import Inspection
from training.data.row_formats import UNKNOWN
from training.data.survey import Issue
from training.data.usual_columns import unused_columns
from training.errors import Conflict, DataError, NotFound
from worker.datasets import bundles, incoming, row_pages, token_stores
from worker.datasets.checking import check_file
from worker.datasets.incoming import plain_name
from worker.disk_quota import DiskQuota, measured
from worker.file_store import dataset_files
from worker.settings import get_settings
from worker.store import database, json_parts, shares
from worker.store.tables import LOCAL, Dataset, Run

ID_LENGTH = 16


class DatasetNotFound(NotFound):
    """No data set has this id."""


class DatasetInUse(Conflict):
    """A queued or running run uses it."""


class Refused(DataError):  # noqa: N818
    """A file that cannot be used for training: the first error, with all as `issues`."""

    def __init__(self, inspection: Inspection) -> None:
        error = inspection.error() or DataError("cannot be used for training.", "Give other rows.")
        super().__init__(error.message, error.fix, file=error.file, line=error.line, field=error.field)
        self.issues: list[Issue] = inspection.problems


@dataclass(frozen=True)
class Added:
    """A stored data set; `new` is False if it was stored before."""

    dataset: Dataset
    new: bool


def add_file(*, path: Path, name: str, move: bool = False, owner: str = LOCAL) -> Dataset:
    """Checks a file and copies it into the store; `name` is its display name. The same bytes are stored once.

    A folder or a zip archive of data files becomes one data set (see bundles.py). A file of unknown format is stored too, since a
    column mapping can make it usable. With `move`, the file is deleted afterwards, stored or refused.

    Raises:
        DataError: the file is too large, does not fit on the disk or into the owner's quota, or cannot be used; nothing is stored.
    """
    return add(path=path, name=name, move=move, owner=owner).dataset


def add(
    *,
    path: Path,
    name: str,
    move: bool = False,
    columns: str | None = None,
    owner: str = LOCAL,
    quota: DiskQuota | None = None,
) -> Added:
    """As `add_file`, and returns whether the data set is new. With `columns`, a new one is checked and stored with this mapping.

    `quota` is the owner's, if it is measured already.
    """
    name = plain_name(name)
    try:
        quota = quota or measured(owner)
        with bundles.as_file(path, name, quota) as file, incoming.copied(file, name, quota) as (copy, digest):
            known_format = file_format(file, file.name) if file != path else None
            return _take(copy, digest, name, quota, columns, known_format)
    finally:
        if move:
            path.unlink(missing_ok=True)


def add_many(*, paths: Sequence[Path], names: Sequence[str], owner: str = LOCAL) -> Dataset:
    """Checks several files and stores their rows as one JSONL data set, in the given order.

    Raises:
        DataError: as `add_file`, for the first file with an error.
    """
    names = [plain_name(name) for name in names]
    together = " + ".join(names)[:200]
    quota = measured(owner)
    incoming.refuse_unfit(paths, together, quota)
    for path, name in zip(paths, names, strict=True):
        _refuse_unfit(check_file(path, name))
    with incoming.copied_together(paths, names, quota) as (copy, digest):
        return _take(copy, digest, together, quota, file_format="jsonl").dataset


def check_many(*, paths: Sequence[Path], names: Sequence[str], columns: str | None = None) -> Inspection:
    """Inspects several files as the data set that they become, and stores nothing; of the first that cannot train, that file alone.

    Raises:
        DataError: a process that reads them failed.
    """
    names = [plain_name(name) for name in names]
    for path, name in zip(paths, names, strict=True):
        inspection = check_file(path, name, columns)
        if len(paths) == 1 or not inspection.trainable:
            return inspection
    with incoming.copied_together(paths, names, measured(LOCAL)) as (copy, _):
        return check_file(copy, " + ".join(names)[:200], columns, "jsonl")


def save_mapping(dataset_id: str, text: str | None) -> Dataset:
    """Stores the column mapping of a data set, for future runs; None returns to the detected format.

    Raises:
        DatasetNotFound: no data set has this id.
        DataError: the mapping is invalid, or the rows cannot be used with it; the old mapping stays.
    """
    with database.read() as session:
        dataset = get(session=session, dataset_id=dataset_id)
    inspection = check_file(path_of(dataset), dataset.name, text, dataset.format)
    if not inspection.trainable and not (text is None and inspection.mappable):
        raise Refused(inspection)
    with database.write() as session:
        dataset = get(session=session, dataset_id=dataset_id)
        for key, value in _facts(inspection).items():
            setattr(dataset, key, value)
        dataset.columns_map = text
        session.add(dataset)
    return dataset


def check_mapping(dataset: Dataset, columns: str | None) -> None:
    """Checks a data set with a mapping (or None) other than the stored one.

    Raises:
        DataError: it cannot be used; with the place and the reason.
    """
    if columns != dataset.columns_map:
        inspection = check_file(path_of(dataset), dataset.name, columns, dataset.format)
        if not inspection.trainable:
            raise Refused(inspection)


def listing(*, session: Session) -> list[Dataset]:
    """All data sets, the newest first."""
    return list(session.exec(select(Dataset).order_by(col(Dataset.created_at).desc(), col(Dataset.id))))


def get(*, session: Session, dataset_id: str) -> Dataset:
    """The data set with this id. Raises DatasetNotFound if there is none."""
    missing = DatasetNotFound("dataset", dataset_id, "does not exist.", "The page Data sets lists all data sets.")
    return database.existing(session, Dataset, dataset_id, missing)


def unused(dataset: Dataset) -> list[str]:
    """The columns that a run without a mapping of its own does not use; none for a data set of unknown format."""
    known = dataset.columns_map or dataset.row_format != UNKNOWN
    return unused_columns(dataset.columns, dataset.counts, dataset.columns_map) if known else []


def path_of(dataset: Dataset) -> Path:
    """The path of the file on this machine."""
    return get_settings().datasets_dir / f"{dataset.id}.{dataset.format}"


def uploaded_by(*, session: Session, dataset_id: str) -> list[str]:
    """The users besides its owner who uploaded the file of a data set, by name."""
    return shares.users(session=session, kind=shares.UPLOAD, object_id=dataset_id)


def uploads_of(*, session: Session, user: str) -> set[str]:
    """The ids of the data sets that others own, whose file the user uploaded too."""
    return shares.of(session=session, kind=shares.UPLOAD, user=user)


def remove(*, session: Session, dataset_id: str, user: str) -> None:
    """Deletes a data set for a user. If other users uploaded the same file, it stays with them, and one of them owns it.

    Raises:
        DatasetNotFound: there is none.
        DatasetInUse: a queued or running run uses it.
    """
    dataset = get(session=session, dataset_id=dataset_id)
    uploaders = uploaded_by(session=session, dataset_id=dataset_id)
    if dataset.owner == user and uploaders:
        dataset.owner = uploaders[0]
        session.add(dataset)
        shares.drop(session=session, kind=shares.UPLOAD, object_id=dataset_id, user=dataset.owner)
    elif user in uploaders:
        shares.drop(session=session, kind=shares.UPLOAD, object_id=dataset_id, user=user)
    else:
        delete(session=session, dataset_id=dataset_id)


def delete(*, session: Session, dataset_id: str) -> None:
    """Deletes a data set, and its file after the commit. Ended runs lose only the link to it.

    Raises:
        DatasetNotFound: there is none.
        DatasetInUse: a queued or running run uses it.
    """
    dataset = get(session=session, dataset_id=dataset_id)
    users = session.exec(select(Run).where(_uses(dataset_id))).all()
    waiting = [run.id for run in users if not run.status.ended]
    if waiting:
        message = f"is in use by {', '.join(waiting)}."
        raise DatasetInUse("dataset", dataset.name, message, "Stop these runs before you delete it.")
    for run in users:
        run.dataset_id = None if run.dataset_id == dataset_id else run.dataset_id
        session.add(run)
    session.flush()
    for kind in ("dataset", shares.UPLOAD):
        shares.remove(session=session, kind=kind, object_ids=[dataset.id])
    session.delete(dataset)
    path, sha256 = path_of(dataset), dataset.sha256
    database.after_commit(session, lambda: _delete_files(path, sha256))


def _delete_files(path: Path, sha256: str) -> None:
    path.unlink(missing_ok=True)
    dataset_files.forget(path)
    row_pages.drop(path)
    token_stores.drop(sha256)


def clear_tokens() -> None:
    """Removes the tokens of deleted data sets, and leftovers of killed processes."""
    with database.read_everything() as session:
        known = set(session.exec(select(Dataset.sha256)))
    token_stores.keep_only(known)


def _uses(dataset_id: str) -> ColumnElement[bool]:
    # Several data sets are a text that contains their ids.
    named = (json_parts.text(Run.config, field).contains(dataset_id) for field in FIELDS)
    return or_(col(Run.dataset_id) == dataset_id, *named)


def with_content(digest: str) -> Dataset | None:
    """The data set with these bytes, of any owner; None if there is none."""
    with database.read_everything() as session:
        return session.exec(select(Dataset).where(Dataset.sha256 == digest)).first()


def _take(
    copy: Path, digest: str, name: str, quota: DiskQuota, columns: str | None = None, file_format: str | None = None
) -> Added:
    stored, owner = with_content(digest), quota.owner
    if stored is not None and dataset_files.present(path_of(stored), digest):
        return Added(_seen_by(owner, stored), new=False)
    inspection = check_file(copy, name, columns, file_format)
    _refuse_unfit(inspection)
    values = _facts(inspection) | {"format": inspection.file_format, "columns_map": columns, "owner": owner}
    size, now = copy.stat().st_size, time.time()
    new = Dataset(id=digest[:ID_LENGTH], sha256=digest, name=name, bytes=size, created_at=now, **values)
    return Added(_seen_by(owner, _store(copy, new, quota)), new=stored is None)


def _seen_by(user: str, dataset: Dataset) -> Dataset:
    """The data set, which a user who uploads the same file sees from now on."""
    if dataset.owner != user:
        with database.write() as session:
            shares.add(session=session, kind=shares.UPLOAD, object_id=dataset.id, user=user)
    return dataset


def _refuse_unfit(inspection: Inspection) -> None:
    if not inspection.trainable and not inspection.mappable:
        raise Refused(inspection)


def _facts(inspection: Inspection) -> dict[str, Any]:
    same = {key: getattr(inspection, key) for key in ("rows", "columns", "sample", "counts")}
    # The reason may contain names of columns.
    reason = "".join(letter if letter.isprintable() else "\ufffd" for letter in inspection.reason)
    return same | {
        "row_format": inspection.format,
        "reason": reason,
        "warnings": [asdict(issue) for issue in inspection.problems],
    }


def _store(copy: Path, new: Dataset, quota: DiskQuota) -> Dataset:
    dataset_files.push(copy, path_of(new))  # first: a known data set is not uploaded again
    try:
        with database.write() as session:
            incoming.refuse_over(quota.again(session), new.bytes, new.name)
            session.exec(database.insert(session, Dataset).values(**new.model_dump()).on_conflict_do_nothing())
            stored = get(session=session, dataset_id=new.id)
            copy.replace(path_of(stored))
    except BaseException:
        if with_content(new.sha256) is None:
            path_of(new).unlink(missing_ok=True)
            dataset_files.forget(path_of(new))
        raise
    return stored
