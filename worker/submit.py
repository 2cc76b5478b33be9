"""From a configuration to a queued run: all that can be known to be wrong is said before anything is kept."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from sqlmodel import Session

from training import deepspeed_own
from training.config import Method, RunConfig, Task
from training.fields import ConfigError, Problem
from training.model_files import ModelError, ModelFacts, describe_model
from training.rules import Machine, check
from worker import database, run_data, runs
from worker.models import LOCAL, Run
from worker.reach import EVERYTHING, Reach, find_path
from worker.settings import get_settings, hub_token
from worker.units import size

SPARE_BYTES = 256 * 2**20  # logs, records and answers of a run
ANY_MACHINE = Machine("cuda", devices=1024)


def submit(config: RunConfig, *, parent_id: str | None = None, reach: Reach = EVERYTHING, owner: str = LOCAL) -> Run:
    """Queues a run, or keeps nothing at all. A broker that is away is no error: the run waits in the database.

    Data files are copied into the store, so that a run does not depend on a file that changes later. `reach` says which
    files of this machine may be named; run and data belong to `owner`.

    Raises:
        ConfigError: naming every setting at fault, what was given and what to do.
    """
    from worker import queue  # Celery takes 0.3 s to import

    config = _with_deepspeed_file(config, reach)
    problems = list(_unprintable(config))
    if problems:
        raise ConfigError(problems)  # no file is looked for by such a name
    found = {field: run_data.find(field, getattr(config, field), reach, problems) for field in run_data.FIELDS}
    if refused := reach.problems(config):
        raise ConfigError([*problems, *refused])
    config, others = _checked(config)
    problems = [*others, *problems]
    if problems:
        raise ConfigError(problems)
    with run_data.stored(found, config.columns, owner) as stored:
        data, held_out = stored["data"], stored.get("validation_data")
        columns = config.columns or data.columns_map
        run_data.check(stored, columns, config.task)
        changes = {"data": data.id, "validation_data": held_out.id if held_out else None, "columns": columns}
        with database.write() as session:
            run = runs.create(
                session=session,
                config=config.model_copy(update=changes),
                dataset_id=data.id,
                fingerprints={field: item.sha256 for field, item in stored.items()},
                parent_id=parent_id,
                owner=owner,
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
    for field in run_data.FIELDS:
        value = getattr(config, field)
        if value and run_data.DATASET_ID.fullmatch(value):
            paths[field] = run_data.path(session, field, value, problems)
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


def resume(run_id: str, *, step_down: bool = False) -> Run:
    """Queues a failed or stopped run again; with `step_down` with the settings proposed when its memory ran out.

    Raises:
        RunNotFound, NotResumable: as `runs.resume`.
        ConfigError: its model or data are gone.
    """
    from worker import queue

    with database.write() as session:
        run = runs.resume(session=session, run_id=run_id, step_down=step_down)
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


def _with_deepspeed_file(config: RunConfig, reach: Reach) -> RunConfig:
    """The configuration with the JSON in the place of its file's path, so that the run does not depend on a file.

    Raises:
        ConfigError: the file cannot be read, or something in it is wrong.
    """
    given = config.deepspeed_config
    if not given or deepspeed_own.given(config) is not None:
        return config
    path = reach.find(given)
    fix = "Give the path of a DeepSpeed JSON file, or its text."
    if path is None or not path.is_file():
        raise ConfigError([Problem("deepspeed_config", given, "is neither JSON nor a file that is there.", fix)])
    try:
        return config.model_copy(update={"deepspeed_config": deepspeed_own.from_file(path)})
    except (OSError, ValueError) as error:
        raise ConfigError([Problem("deepspeed_config", given, f"{error}.", fix)]) from None


def _checked(config: RunConfig) -> tuple[RunConfig, list[Problem]]:
    """The configuration with its model's place made absolute, and what is wrong with all but the data."""
    problems: list[Problem] = []
    local = find_path(config.model)
    facts = _describe(str(local) if local else config.model, problems)
    for conflict in check(config, machine()):
        if conflict.blocking:
            field = conflict.settings[0]
            problems.append(Problem(field, getattr(config, field), conflict.reason, conflict.fix))
    if config.push_to_hub and not get_settings().broker_url and not hub_token():
        fix = "Set HF_TOKEN or LATHE_HUB_TOKEN to one that may write and start Lathe again, or leave push_to_hub empty."
        problems.append(Problem("push_to_hub", config.push_to_hub, "needs a token of the hub, and there is none.", fix))
    if facts is not None:
        problems += _wrong_kind(config.task, facts)
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


def _wrong_kind(task: Task, facts: ModelFacts) -> Iterator[Problem]:
    """An encoder-decoder has a task of its own, and all models can score texts."""
    if facts.is_encoder_decoder is None or not task.generates:
        return
    if task is Task.SEQ2SEQ and not facts.is_encoder_decoder:
        message = f"needs a model of an encoder and a decoder, and {facts.architecture} is a decoder alone."
        yield Problem("task", task.value, message, "Choose a T5 or BART, or the task sft.")
    elif task is not Task.SEQ2SEQ and facts.is_encoder_decoder:
        message = f"needs a model that is a decoder alone, and {facts.architecture} has an encoder too."
        yield Problem("task", task.value, message, "Set task to seq2seq, or choose another model.")


def disk_needed(config: RunConfig, facts: ModelFacts) -> int:
    """Bytes a run writes at most, roughly: checkpoints (one more than is kept, while it is written) and the result.

    A trained parameter takes 16 bytes in a checkpoint (weight, fp32 copy and Adam's two moments) and at most 8 in the
    result and its download. LoRA of rank r trains about 2r/d of a model of width d; the adapter merged into its base takes
    as much as the base, twice with its download. Unknown sizes count as none.
    """
    parameters = facts.parameters or 0
    lora = min(1.0, 2 * config.lora_r / facts.hidden_size) if facts.hidden_size else 0.0
    trained = parameters if config.method is Method.FULL else parameters * lora
    merged = 8 * parameters if config.merge_adapter else 0
    return SPARE_BYTES + merged + int(trained * (16 * (config.save_total_limit + 1) + 8))


def _disk_problems(config: RunConfig, facts: ModelFacts) -> Iterator[Problem]:
    folder = next(path for path in (get_settings().data_dir, *get_settings().data_dir.parents) if path.exists())
    needed, free = disk_needed(config, facts), shutil.disk_usage(folder).free
    if needed > free:
        message = f"Checkpoints and result need about {size(needed)}, and the disk of {folder} has {size(free)} free."
        fix = "Free some space, keep fewer checkpoints, or set LATHE_DATA_DIR to a larger disk."
        yield Problem("save_total_limit", config.save_total_limit, message, fix)
