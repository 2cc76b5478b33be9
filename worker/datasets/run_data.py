"""The data of a run: copied into the store and checked when the run is submitted."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

from training.config import data_sets
from training.config.data_sets import Source
from training.config.fields import ConfigError
from training.config.run_config import Changes, RunConfig
from training.config.task import Task
from training.data.content_mapping import suggest_by_any
from training.data.example import ONE_CLASS, ONE_CLASS_FIX, check_classes
from training.data.inspection import Inspection
from training.data.mapping import format_of, parse_mapping
from training.data.row_format import RowFormat
from training.data.row_formats import ANSWERS_FIX, NO_EXPECTED, UNKNOWN, UNKNOWN_FIX
from training.data.rows import reader
from training.errors import DataError, Problem, UserError
from training.rewards.built_in import WITHOUT_EXPECTED
from training.rewards.rewards import rewards_of
from training.tokens.parts import misfit, tasks_of
from training.tokens.run_rows import counted_rows
from training.tokens.selection import SetRows
from worker.datasets import datasets
from worker.datasets.bundles import is_bundle
from worker.datasets.checking import check_file
from worker.datasets.datasets import Refused
from worker.disk_quota import DiskQuota
from worker.store import database, sight
from worker.store.submissions import Repeated
from worker.store.tables import Dataset

FIELDS = data_sets.FIELDS
DATASET_ID = re.compile(r"[0-9a-f]{16}")
MOST_READ_BYTES = 20 * 2**20  # read while a form is filled in; a larger file is checked at Start


@dataclass(frozen=True)
class NamedData:
    """The data set or file that an entry of a setting names, or why there is none (worker/runs/settle.py)."""

    field: str
    source: Source
    data: Dataset | Path | Problem


@dataclass(frozen=True)
class RunSet:
    """A stored data set of a run: the setting that names it, how much of it is used, and the mapping of its columns."""

    field: str
    source: Source
    dataset: Dataset
    columns: str | None


@dataclass(frozen=True)
class RunData:
    """The data sets of a run, and the run's mapping of columns."""

    sets: tuple[RunSet, ...]
    columns: str | None

    @property
    def training(self) -> Dataset:
        """The first training data set."""
        return self.sets[0].dataset

    @property
    def title(self) -> str:
        """The names of the training data sets."""
        return " + ".join(member.dataset.name for member in self.sets if member.field == "data")

    @property
    def settings(self) -> Changes:
        """The run's settings that name its data, with ids in the place of paths."""
        named = {field: [self._stored(member) for member in self.sets if member.field == field] for field in FIELDS}
        values = {field: data_sets.written(sources) if sources else None for field, sources in named.items()}
        return values | {"columns": self.columns}

    @property
    def fingerprints(self) -> dict[str, str]:
        """The SHA-256 of each data set, by setting; of several in one setting the further ones as `data 2` and so on."""
        digests: dict[str, str] = {}
        for field in FIELDS:
            members = [member for member in self.sets if member.field == field]
            digests |= {
                f"{field} {number}" if number > 1 else field: member.dataset.sha256
                for number, member in enumerate(members, 1)
            }
        return digests

    def _stored(self, member: RunSet) -> Source:
        """The source with the data set's id, its mapping if that is not the run's, and where it is one of several its name."""
        several = len([other for other in self.sets if other.field == member.field]) > 1
        name = member.source.name or (member.dataset.name if several else "")
        columns = member.columns if member.columns != self.columns else None
        return replace(member.source, path=member.dataset.id, name=name, columns=columns)


@contextmanager
def imported_data(
    named: Sequence[NamedData], config: RunConfig, quota: DiskQuota, problems: Sequence[Problem] = ()
) -> Iterator[RunData]:
    """Copies the files among a run's data into the store, and checks all of it against the run's task.

    New data sets are deleted again if the data is refused or the `with` block raises. `problems` are those already found in the
    configuration; all are raised together.

    Raises:
        ConfigError: `problems`, and one for each data set that is missing, cannot be read or cannot train the task.
    """
    problems = [*problems, *(item.data for item in named if isinstance(item.data, Problem))]
    if problems:
        raise ConfigError(problems)
    stored: list[RunSet] = []
    new: list[str] = []
    common = config.columns or (config.sources[0].columns if len(config.sources) == 1 else None)
    try:
        for item in named:
            field, source, dataset = item.field, item.source, item.data
            if isinstance(dataset, Path):
                added = add(field, dataset, source.columns or common, quota)
                dataset = added.dataset
                new += [added.dataset.id] if added.new else []
            assert isinstance(dataset, Dataset)
            if field == "data" and len(config.sources) == 1:
                common = common or dataset.columns_map  # also that of validation data without a mapping
            columns = source.columns or config.columns or dataset.columns_map or common
            stored.append(RunSet(field, source, dataset, columns))
        data = RunData(tuple(stored), common)
        formats = (row_format_of(member.dataset, member.columns) for member in data.sets)
        if problems := [
            *_misfits(data, config.task),
            *_twice(data),
            *_nothing_left(config, data),
            *_comparing(config, formats),
        ]:
            raise ConfigError(problems)
        yield data
    except Repeated:  # the run that was queued first uses the data too
        raise
    except BaseException:
        for dataset_id in new:
            with suppress(datasets.DatasetInUse, datasets.DatasetNotFound), database.write() as session:
                # Another request may use it meanwhile.
                datasets.remove(session=session, dataset_id=dataset_id, user=quota.owner)
        raise


def sources_of(config: RunConfig) -> Iterator[tuple[str, Source]]:
    """Every data set that a configuration names, with its setting."""
    for field in FIELDS:
        for source in data_sets.sources(getattr(config, field)):
            yield field, source


def add(field: str, path: Path, columns: str | None, quota: DiskQuota) -> datasets.Added:
    """Copies a file into the store. Raises ConfigError if it cannot be read."""
    try:
        return datasets.add(path=path, name=path.name, columns=columns, quota=quota)
    except DataError as error:
        raise ConfigError([_problem(field, path, error)]) from None


def problems(named: Sequence[NamedData], config: RunConfig) -> Iterator[Problem]:
    """What is wrong with the data of a run, as far as it can be said without reading large files. Stores nothing."""
    formats: set[str] = set()
    for item in named:
        if isinstance(item.data, Problem):
            yield item.data
        elif isinstance(item.data, Path) and not os.access(item.data, os.R_OK):
            fix = "Change its permissions (chmod o+r)."
            yield Problem(item.field, item.source.path, "cannot be read: permission denied.", fix)
        else:
            yield from _unfit(item.field, item.data, item.source.columns or config.columns, config.task, formats)
    yield from _comparing(config, formats)


def _unfit(field: str, source: Dataset | Path, columns: str | None, task: Task, formats: set[str]) -> Iterator[Problem]:
    """The problem of a data set, or of a file that is small enough to be read now, if it cannot train the task; else the format of
    its rows is added to `formats`."""
    item: Dataset | None = None
    try:
        item = as_dataset(source, columns) if isinstance(source, Path) else source
        if item is not None:
            _check_format(item, columns or item.columns_map, task)
            formats.add(row_format_of(item, columns or item.columns_map))
    except DataError as error:
        yield _problem(field, item or source, error)


def _misfits(data: RunData, task: Task) -> Iterator[Problem]:
    """One problem for each data set that cannot train the task under the run's mapping."""
    for member in data.sets:
        try:
            datasets.check_mapping(member.dataset, member.columns)
            _check_format(member.dataset, member.columns, task)
        except DataError as error:
            yield _problem(member.field, member.dataset, error)


def row_format_of(item: Dataset, columns: str | None) -> str:
    """The format of a data set's rows under a mapping of its columns."""
    return format_of(parse_mapping(columns)) if columns else item.row_format


def _comparing(config: RunConfig, formats: Iterable[str]) -> Iterator[Problem]:
    """What compares answers with expected ones, if rows are prompts alone."""
    if RowFormat.PROMPT not in set(formats):
        return
    try:
        rewards = (
            [reward.name for reward in rewards_of(config) if reward.compares]
            if config.task.traits.rewards_samples
            else []
        )
    except UserError:  # a rule tells it
        rewards = []
    if rewards:
        yield Problem(
            "rewards", ", ".join(rewards), NO_EXPECTED, f"Use rewards that need none: {WITHOUT_EXPECTED}. {ANSWERS_FIX}"
        )
    if config.eval_answers:
        yield Problem(
            "eval_answers", config.eval_answers, NO_EXPECTED, f"Set it to 0. {ANSWERS_FIX}", {"eval_answers": 0}
        )


def _twice(data: RunData) -> Iterator[Problem]:
    """A problem for two training files with the same content: one data set in the store."""
    seen: set[tuple[str, str | None]] = set()
    for member in data.sets:
        key = member.dataset.id, member.columns
        if member.field == "data" and key in seen:
            message = "has the same content as another data set of the run."
            yield Problem("data", member.source.path, message, "Remove one.")
        seen.add(key)


def _nothing_left(config: RunConfig, data: RunData) -> Iterator[Problem]:
    """A problem if eval_split holds out all rows: at most so many as the files have, since some may be skipped."""
    sets = [SetRows(member.dataset.rows, member.source.max_rows) for member in data.sets if member.field == "data"]
    try:
        counted_rows(config, sets)
    except DataError as error:
        yield Problem("eval_split", config.eval_split, f"leaves nothing to train: the data {error.message}", error.fix)


def _check_format(item: Dataset, columns: str | None, task: Task) -> None:
    if not columns and item.row_format == UNKNOWN:
        raise DataError(f"has columns of no known format: {', '.join(item.columns)}.", UNKNOWN_FIX)
    row_format = row_format_of(item, columns)
    if message := misfit(task, row_format):
        fitting = ", ".join(fit.value for fit in tasks_of(row_format))
        raise DataError(message, f"Choose another data set, or a task that it fits: {fitting}.")
    if task.traits.has_classes:
        check_classes(list(_first_answers(item, columns)))
        if any(issue["message"] == ONE_CLASS for issue in item.warnings):
            raise DataError(ONE_CLASS, ONE_CLASS_FIX, field="label")


def _first_answers(item: Dataset, columns: str | None) -> Iterator[str]:
    """The answers of the data set's first rows; empty for a row without one."""
    read = reader(columns)
    for row in item.sample:
        try:
            yield read(row)[1].answer.strip()
        except DataError:  # the row is empty, or too long for the sample
            yield ""


def unseen(config: RunConfig) -> Iterator[Problem]:
    """A problem for each data set that a stored configuration names and the user does not see, whether there is one or not."""
    with database.read() as session:
        for field, source in sources_of(config):
            if DATASET_ID.fullmatch(source.path) and session.get(Dataset, source.path) is None:
                message = "was deleted" + (", or is not shared with you and the run's owner." if sight.user() else ".")
                yield Problem(field, source.path, message, "Clone the run and choose another data set.")


def _problem(field: str, data: Dataset | Path, error: DataError) -> Problem:
    """The error as a problem of a setting; for unknown columns with a mapping that fits."""
    position = ", ".join(part for part in (f"row {error.line}" if error.line else "", error.field) if part)
    message = f"{position} {error.message}".strip()
    if isinstance(data, Path):
        return Problem(field, str(data), message, error.fix)
    if error.fix == UNKNOWN_FIX and (mapping := suggest_by_any(data.sample)):
        return Problem(field, data.name, message, f"Set the column mapping to {mapping}.", {"columns": mapping})
    return Problem(field, data.name, message, error.fix)


def as_dataset(path: Path, columns: str | None) -> Dataset | None:
    """The file as a data set that is not stored; None if it is too large, a folder or a zip archive.

    Raises:
        Refused: a run could not train on it.
    """
    facts = path.stat()
    if is_bundle(path) or not path.is_file() or facts.st_size > MOST_READ_BYTES:
        return None
    inspection = _inspected(path, facts.st_mtime_ns, facts.st_size, columns)
    if not inspection.trainable and (columns or not inspection.mappable):
        raise Refused(inspection)
    return Dataset(
        id="", sha256="", name=path.name, bytes=facts.st_size, created_at=0, rows=inspection.rows, format=inspection.file_format,
        row_format=inspection.format, columns=inspection.columns, sample=inspection.sample, counts=inspection.counts,
        warnings=[asdict(issue) for issue in inspection.problems],
    )  # fmt: skip


@lru_cache(maxsize=64)
def _inspected(path: Path, _changed: int, _bytes: int, columns: str | None) -> Inspection:
    return check_file(path, path.name, columns)
