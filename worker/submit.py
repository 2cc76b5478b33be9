"""From a configuration to a queued run: all that can be known to be wrong is said before anything is kept."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlmodel import Session

from training.config import Method, RunConfig
from training.failure import DataError
from training.fields import ConfigError, Problem
from training.formats import UNKNOWN, UNKNOWN_FIX
from training.model_files import ModelError, ModelFacts, describe_model
from training.rules import Machine, check
from worker import database, datasets, runs
from worker.datasets import DatasetNotFound
from worker.models import Dataset, Run
from worker.settings import ROOT, get_settings
from worker.units import size

DATASET_ID = re.compile(r"[0-9a-f]{16}")
DATA_FIELDS = ("data", "validation_data")
SPARE_BYTES = 256 * 2**20  # logs, records and answers of a run
ANY_MACHINE = Machine("cuda", devices=1024)
DATA_FIX = "Give a JSON, JSONL, CSV, TSV, text or Parquet file, or pick a data set that was uploaded."


def submit(config: RunConfig, *, parent_id: str | None = None, files: bool = True) -> Run:
    """Queues a run, or keeps nothing at all. A broker that is away is no error: the run waits in the database.

    Data files are copied into the store, so that a run does not depend on a file that changes later. With `files` False,
    data are ids of uploaded data sets only: for who may not read this machine's files.

    Raises:
        ConfigError: naming every setting at fault, what was given and what to do.
    """
    from worker import queue  # Celery takes 0.3 s to import

    config, problems = _checked(config)
    found = {field: _find_data(field, getattr(config, field), files, problems) for field in DATA_FIELDS}
    if problems:
        raise ConfigError(problems)
    with _stored(found, config.columns) as stored:
        data, held_out = stored["data"], stored.get("validation_data")
        columns = config.columns or data.columns_map
        _check_columns(stored, columns)
        changes = {"data": data.id, "validation_data": held_out.id if held_out else None, "columns": columns}
        with database.write() as session:
            run = runs.create(
                session=session,
                config=config.model_copy(update=changes),
                dataset_id=data.id,
                parent_id=parent_id,
                name=config.name or f"{Path(config.model).name} on {data.name}",
            )
    queue.ring(run.id)
    return run


def resolve(config: RunConfig, session: Session) -> RunConfig:
    """The configuration for the trainer: ids of data sets become the paths of their files on this machine.

    Raises:
        ConfigError: a data set was deleted, or its file is not on this machine.
    """
    problems: list[Problem] = []
    paths: dict[str, str | None] = {}
    for field in DATA_FIELDS:
        value = getattr(config, field)
        if value and DATASET_ID.fullmatch(value):
            paths[field] = _data_path(session, field, value, problems)
    if problems:
        raise ConfigError(problems)
    return config.model_copy(update=paths)


def stop(run_id: str) -> Run:
    """Asks a run to stop.

    Raises:
        RunNotFound, NotRunning: as `runs.request_stop`.
    """
    with database.write() as session:
        return runs.request_stop(session=session, run_id=run_id)


def resume(run_id: str) -> Run:
    """Queues a failed or stopped run again.

    Raises:
        RunNotFound, NotResumable: as `runs.resume`.
        ConfigError: its model or data are gone.
    """
    from worker import queue

    with database.write() as session:
        run = runs.resume(session=session, run_id=run_id)
        config = RunConfig.model_validate(run.config)
        resolve(config, session)
        problems: list[Problem] = []
        _describe(config.model, problems)
        if problems:
            raise ConfigError(problems)
    queue.ring(run.id)
    return run


def machine() -> Machine:
    """What runs are checked against: this machine, or any where the workers are on others, which is so with a broker of its own."""
    from worker import devices

    return ANY_MACHINE if get_settings().broker_url else devices.machine()


def _checked(config: RunConfig) -> tuple[RunConfig, list[Problem]]:
    """The configuration with its model's place made absolute, and what is wrong with all but the data."""
    problems = list(_unprintable(config))
    if problems:
        raise ConfigError(problems)  # no file is looked for by such a name
    local = _find_path(config.model)
    facts = _describe(str(local) if local else config.model, problems)
    for conflict in check(config, machine()):
        if conflict.blocking:
            field = conflict.settings[0]
            problems.append(Problem(field, getattr(config, field), conflict.reason, conflict.fix))
    if facts is not None:
        problems += _disk_problems(config, facts)
        config = config.model_copy(update={"model": str(facts.path)}) if facts.path else config
    return config, problems


def _unprintable(config: RunConfig) -> Iterator[Problem]:
    for field, value in config:
        if isinstance(value, str) and not value.isprintable():
            yield Problem(field, value, "holds a character that cannot be printed.", "Type it again.")


def _describe(model: str, problems: list[Problem]) -> ModelFacts | None:
    try:
        return describe_model(model)
    except ModelError as error:
        problems.append(Problem("model", error.value, error.message, error.fix))
    except (OSError, RuntimeError):
        problems.append(
            Problem("model", model, "cannot be looked for.", "Give a folder with config.json, or a hub id.")
        )
    return None


def disk_needed(config: RunConfig, facts: ModelFacts) -> int:
    """Bytes a run writes at most, roughly: checkpoints (one more than is kept, while it is written) and the result.

    A trained parameter takes 16 bytes in a checkpoint (weight, fp32 copy and Adam's two moments) and at most 8 in the
    result and its download. LoRA of rank r trains about 2r/d of a model of width d. Unknown sizes count as none.
    """
    parameters = facts.parameters or 0
    lora = min(1.0, 2 * config.lora_r / facts.hidden_size) if facts.hidden_size else 0.0
    trained = parameters if config.method is Method.FULL else parameters * lora
    return SPARE_BYTES + int(trained * (16 * (config.save_total_limit + 1) + 8))


def _disk_problems(config: RunConfig, facts: ModelFacts) -> Iterator[Problem]:
    folder = next(path for path in (get_settings().data_dir, *get_settings().data_dir.parents) if path.exists())
    needed, free = disk_needed(config, facts), shutil.disk_usage(folder).free
    if needed > free:
        message = f"Checkpoints and result need about {size(needed)}, and the disk of {folder} has {size(free)} free."
        fix = "Free some space, keep fewer checkpoints, or set LATHE_DATA_DIR to a larger disk."
        yield Problem("save_total_limit", config.save_total_limit, message, fix)


def _find_path(value: str) -> Path | None:
    """An existing file or folder: as given, from the current folder, or from the program's own (static/starter)."""
    try:
        path = Path(value).expanduser()
        return next((base / path for base in (Path.cwd(), ROOT) if (base / path).exists()), None)
    except (OSError, RuntimeError):  # longer than a path may be, or the home of a user that is not there
        return None


def _find_data(field: str, value: str | None, files: bool, problems: list[Problem]) -> Dataset | Path | None:
    if not value:
        return None
    if DATASET_ID.fullmatch(value):
        with database.read() as session:
            known = session.get(Dataset, value)
        if known is not None and datasets.path_of(known).is_file():
            return known
    path = _find_path(value) if files else None
    if path is None:
        what = "is neither a file nor the id of a data set." if files else "is not the id of a data set."
        problems.append(Problem(field, value, what, DATA_FIX if files else "Upload the file first, then pick it."))
    return path


@contextmanager
def _stored(found: dict[str, Dataset | Path | None], columns: str | None) -> Iterator[dict[str, Dataset]]:
    """The data sets, with files taken into the store; those that are new are taken out again where the run is not made."""
    stored: dict[str, Dataset] = {}
    new: list[str] = []
    try:
        for field, data in found.items():
            if isinstance(data, Path):
                added = _add(field, data, columns)
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


def _add(field: str, path: Path, columns: str | None) -> datasets.Added:
    try:
        return datasets.add(path=path, name=path.name, columns=columns)
    except DataError as error:
        raise ConfigError([_data_problem(field, str(path), error)]) from None


def _check_columns(stored: dict[str, Dataset], columns: str | None) -> None:
    """Sees that the data can train, under the run's mapping where there is one.

    Raises:
        ConfigError: it cannot; one problem a data set.
    """
    problems = []
    for field, data in stored.items():
        try:
            if columns:
                datasets.check_mapping(data, columns)
            elif data.shape == UNKNOWN:
                raise DataError(f"has columns of no known format: {', '.join(data.columns)}.", UNKNOWN_FIX)
        except DataError as error:
            problems.append(_data_problem(field, data.name, error))
    if problems:
        raise ConfigError(problems)


def _data_problem(field: str, value: str, error: DataError) -> Problem:
    place = ", ".join(part for part in (f"row {error.line}" if error.line else "", error.field) if part)
    return Problem(field, value, f"{place} {error.message}".strip(), error.fix)


def _data_path(session: Session, field: str, dataset_id: str, problems: list[Problem]) -> str | None:
    try:
        path = datasets.path_of(datasets.get(session=session, dataset_id=dataset_id))
    except DatasetNotFound:
        problems.append(Problem(field, dataset_id, "was deleted.", "Clone the run and give other data."))
        return None
    if not path.is_file():
        message = f"is not on this machine ({path})."
        problems.append(Problem(field, dataset_id, message, "All workers need the same data folder; mount it here."))
    return str(path)
