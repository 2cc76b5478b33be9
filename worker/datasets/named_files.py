"""Files of this machine that a form names: read before Start, so that it can say what Start would refuse."""

from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

from training.data.inspection import Inspection
from worker.datasets.bundles import is_bundle
from worker.datasets.checking import check_file
from worker.datasets.datasets import Refused
from worker.store.tables import Dataset

MOST_BYTES = 20 * 2**20  # read while a form is filled in; a larger file is checked at Start


def as_dataset(path: Path, columns: str | None) -> Dataset | None:
    """The file as a data set that is not stored; None if it is too large, a folder or a zip archive.

    Raises:
        Refused: a run could not train on it.
    """
    facts = path.stat()
    if is_bundle(path) or not path.is_file() or facts.st_size > MOST_BYTES:
        return None
    found = _inspected(path, facts.st_mtime_ns, facts.st_size, columns)
    if not found.trainable and (columns or not found.mappable):
        raise Refused(found)
    return Dataset(
        id="", sha256="", name=path.name, bytes=facts.st_size, created_at=0, rows=found.rows, format=found.file_format,
        shape=found.format, columns=found.columns, sample=found.sample, counts=found.counts,
        warnings=[asdict(issue) for issue in found.problems],
    )  # fmt: skip


@lru_cache(maxsize=64)
def _inspected(path: Path, _changed: int, _bytes: int, columns: str | None) -> Inspection:
    return check_file(path, path.name, columns)
