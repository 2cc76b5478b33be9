"""Checks a configuration completely, then stores and queues the run."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import Final

from sqlalchemy.exc import IntegrityError
from sqlmodel import Session

from training.config import trackers
from training.config.choices import EngineName, Method, Packing, Strategy, Task
from training.config.fields import ConfigError
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.errors import Problem
from training.model_info.config_json import ModelError, read_config
from training.model_info.flat_batches import why_padded
from training.model_info.folder import ModelFacts, describe_model, has_tokenizer
from training.rules import check
from training.units import byte_size
from worker import disk_quota
from worker.allowed_paths import EVERYTHING, AllowedPaths, find_path, with_model_path
from worker.datasets import run_data, template_checking
from worker.datasets.run_data import RunData, resolve
from worker.runs.admission import admitted, as_both_see
from worker.runs.config_files import with_files
from worker.runs.initial_adapter import adapter_problems, with_adapter_targets
from worker.runs.model_fit import model_problems
from worker.runs.resharding import sharding_changes
from worker.settings import get_settings, hub_token
from worker.store import database, quotas, runs, submissions
from worker.store.runs import SweepPlace
from worker.store.submissions import Repeated, Submission
from worker.store.tables import LOCAL, Run

SPARE_BYTES = 256 * 2**20  # logs, events and answers of a run
_IN_TEMPLATES = str.maketrans("", "", "\n\r\t")
A_CLUSTER = Machine("cuda", devices=1024, most_machines=1024)
A_CPU_CLUSTER = Machine(most_machines=1024)
_GATE: Final = object()


@dataclass(frozen=True)
class Prepared:
    """A run that may be stored: its checked configuration, its data and its owner. Only `prepared` makes one."""

    config: RunConfig
    data: RunData
    owner: str
    gate: InitVar[object]

    def __post_init__(self, gate: object) -> None:
        if gate is not _GATE:
            raise TypeError("Only prepared() makes a run that may be stored: it checks the configuration.")


def submit(
    config: RunConfig,
    *,
    parent_id: str | None = None,
    reach: AllowedPaths = EVERYTHING,
    owner: str = LOCAL,
    submission: Submission | None = None,
) -> Run:
    """Checks, stores and queues a run; if it is refused, nothing is stored. An unreachable broker is no error: the run waits.

    Data files are copied into the store, so that later changes do not affect the run. `reach` restricts the files of this machine
    that may be named; run and data belong to `owner`. A `submission` that was stored before returns its first run.

    Raises:
        ConfigError: one problem for each wrong setting.
        KeyReused: the submission's key was sent with another body.
    """
    if submission and (first := _first(submission)):
        return first
    try:
        run = _queued(config, parent_id, reach, owner, submission)
    except (ConfigError, IntegrityError) as error:
        if submission and (first := _first(submission)):  # stored meanwhile, perhaps in the last place of the quota
            return first
        if isinstance(error, ConfigError):
            raise
        # Another request with this data was refused meanwhile, and has deleted it.
        run = _queued(config, parent_id, reach, owner, submission)
    notify(run.id)
    return run


def _queued(
    config: RunConfig, parent_id: str | None, reach: AllowedPaths, owner: str, submission: Submission | None
) -> Run:
    with prepared(config, reach=reach, owner=owner) as ready:
        try:
            return _create(ready, parent_id, submission)
        except Repeated as repeated:  # caught here, so that the data, which the first run uses too, is kept
            with database.read() as session:
                return runs.get(session=session, run_id=repeated.stored_id)


@contextmanager
def prepared(config: RunConfig, *, reach: AllowedPaths = EVERYTHING, owner: str = LOCAL) -> Iterator[Prepared]:
    """Checks a run as `submit` does, and copies its data into the store.

    If the `with` block raises, data that is new in the store is deleted again.

    Raises:
        ConfigError: one problem for each wrong setting.
    """
    config = with_files(config, reach)
    if problems := list(_unprintable(config)):
        raise ConfigError(problems)  # no file is looked for by such a name
    config, problems = _checked(config, reach, owner)
    if not reach.problems(config):  # a rule may read the model's folder
        problems += _blocking(config)
    with run_data.taken_in(config, reach, owner, problems) as data:
        if problems := _faults(config, data):
            raise ConfigError(problems)
        yield Prepared(config, data, owner, _GATE)


def _first(submission: Submission) -> Run | None:
    with database.read() as session:
        run_id = submissions.find(session=session, submission=submission)
        return runs.get(session=session, run_id=run_id) if run_id else None


def _create(ready: Prepared, parent_id: str | None, submission: Submission | None) -> Run:
    with database.write() as session:
        run = stored(session, ready, parent_id=parent_id)
        if submission:
            submissions.add(session=session, submission=submission, stored_id=run.id)
        refuse_too_many(session, ready.owner)
    return run


def refuse_too_many(session: Session, owner: str) -> None:
    """Refuses what this transaction has queued if the owner then has too many waiting runs.

    Raises:
        ConfigError: there are more than allowed.
    """
    if problem := quotas.waiting_problem(session=session, owner=owner):
        raise ConfigError([problem])


def stored(session: Session, ready: Prepared, *, parent_id: str | None = None, place: SweepPlace | None = None) -> Run:
    """Stores a run as queued; `place` is that in a sweep."""
    config, data = ready.config, ready.data
    return runs.create(
        session=session,
        config=config.model_copy(update=data.settings),
        dataset_id=data.training.id,
        fingerprints=data.fingerprints,
        parent_id=parent_id,
        owner=ready.owner,
        name=config.name or f"{Path(config.model).name} on {data.title}"[:200],
        place=place,
    )


def problems(config: RunConfig, reach: AllowedPaths = EVERYTHING, owner: str = LOCAL) -> list[Problem]:
    """Why `submit` would refuse a run, as far as it can be said without reading large files; conflicts of settings not included."""
    if unprintable := list(_unprintable(config)):
        return unprintable
    _, found = _checked(config, reach, owner)
    return found + run_data.problems(config, reach)


def refusals(config: RunConfig, reach: AllowedPaths = EVERYTHING, owner: str = LOCAL) -> list[Problem]:
    """`problems`, and the conflicts of settings that would make `submit` refuse the run."""
    try:
        config = with_files(config, reach)
    except ConfigError as error:
        return error.problems
    found = problems(config, reach, owner)
    return found if reach.problems(config) else [*found, *_blocking(with_model_path(config))]


def _faults(config: RunConfig, data: RunData) -> list[Problem]:
    """The faults in rows of the training data, as the run renders them."""
    if not get_settings().check_templates or not template_checking.checks(config):
        return []
    found = [
        problem
        for one in data.sets
        if one.field == "data"
        for problem in template_checking.problems(
            config, template_checking.report(config, one.dataset, one.columns), one.dataset.name
        )
    ]
    return list({(problem.field, problem.message): problem for problem in found}.values())


def stop(run_id: str) -> Run:
    """Asks a run to stop.

    Raises:
        RunNotFound, NotRunning: as `runs.request_stop`.
    """
    with database.write() as session:
        return runs.request_stop(session=session, run_id=run_id)


def resume(
    run_id: str,
    *,
    step_down: bool = False,
    strategy: Strategy | None = None,
    num_processes: int | None = None,
    reach: AllowedPaths = EVERYTHING,
) -> Run:
    """Queues a failed, stopped or diverged run again; with `step_down`, with the settings proposed after an out-of-memory error.

    With `strategy` or `num_processes`, its checkpoint is divided anew.

    Raises:
        RunNotFound, NotResumable: as `runs.resume`.
        UserError: the checkpoint cannot be divided so.
        ConfigError: its model or data no longer exist, `reach` and its owner's do not allow them, or its owner's quota does not
            allow it.
    """
    with database.read_everything() as session:
        owner = runs.get(session=session, run_id=run_id).owner
    over = disk_quota.measured(owner).refusal(0)
    with database.write() as session:
        changes = sharding_changes(
            session=session, run_id=run_id, strategy=strategy, num_processes=num_processes, machine=machine()
        )
        run = runs.resume(session=session, run_id=run_id, step_down=step_down, changes=changes)
        config = admitted(run, reach=reach)
        problems: list[Problem] = []
        # The row may come from an archive and name what neither of them sees.
        for _ in as_both_see(owner):
            problems = problems or [*run_data.unseen(config), *adapter_problems(config)]
        if not problems:
            resolve(config, session)
        problems += _quota_problems(session, config, owner, more=0)
        problems += [Problem("run", run.id, over, disk_quota.FIX)] if over else []
        _describe(config.model, problems)
        if problems:
            raise ConfigError(problems)
    notify(run.id)
    return run


def notify(run_id: str) -> None:
    """Tells the workers that a run may start; they also look by themselves every few seconds."""
    from worker import celery_app  # Celery takes 0.2 s to import

    celery_app.notify(run_id)


def machine(engine: EngineName = EngineName.AUTO) -> Machine:
    """The machine that runs are checked against: this one, or any if LATHE_BROKER_URL allows workers on other machines.

    With Slurm a run may use many of its nodes, whose devices are unknown here.
    """
    from worker.machine import devices

    if chosen_engine(engine) is EngineName.SLURM:
        return A_CPU_CLUSTER if get_settings().slurm_gres == "cpu" else A_CLUSTER
    return A_CLUSTER if get_settings().broker_url else devices.machine()


def chosen_engine(engine: EngineName) -> EngineName:
    """The engine that a run's setting means."""
    return get_settings().engine_names[0] if engine is EngineName.AUTO else engine


def _checked(config: RunConfig, reach: AllowedPaths, owner: str) -> tuple[RunConfig, list[Problem]]:
    """The configuration with its model's path made absolute, and the problems of all settings but the data."""
    if refused := reach.problems(config):
        return config, refused  # do not open a model or an adapter outside the allowed folders
    config = with_adapter_targets(config)
    with database.read_everything() as session:
        problems = list(_quota_problems(session, config, owner, more=1))
    problems += adapter_problems(config)
    local = find_path(config.model)
    facts = _describe(str(local) if local else config.model, problems)
    if chosen_engine(config.engine) is EngineName.SLURM and (
        short := get_settings().time_problem(config.slurm_options)
    ):
        problems.append(short)
    if config.push_to_hub and not get_settings().broker_url and not hub_token():
        fix = "Set HF_TOKEN or LATHE_HUB_TOKEN to a token with write access and restart Lathe, or leave push_to_hub empty."
        problems.append(Problem("push_to_hub", config.push_to_hub, "needs a hub token, and none is set.", fix))
    if not get_settings().broker_url:  # else the workers are elsewhere, and each run notes what is missing there
        problems += trackers.missing(config.report_to)
    if facts is not None:
        problems += model_problems(config, facts)
        problems += _wrong_kind(config.task, facts)
        problems += _wrong_packing(config, facts)
        if facts.path and not has_tokenizer(facts.path):
            fix = "Copy tokenizer.json and tokenizer_config.json from the original model into the folder."
            problems.append(Problem("model", config.model, "the folder has no tokenizer.", fix))
        problems += _disk_problems(config, facts, owner)
        config = config.model_copy(update={"model": str(facts.path)}) if facts.path else config
    return config, problems


def _quota_problems(session: Session, config: RunConfig, owner: str, *, more: int) -> Iterator[Problem]:
    """What the owner's quota does not allow, with `more` waiting runs."""
    on_cpu = chosen_engine(config.engine) is EngineName.LOCAL and machine(config.engine).kind == "cpu"
    found = quotas.devices_problem(session=session, config=config, owner=owner, on_cpu=on_cpu)
    yield from filter(None, [found, quotas.waiting_problem(session=session, owner=owner, more=more)])


def _blocking(config: RunConfig) -> list[Problem]:
    return [
        Problem(conflict.settings[0], getattr(config, conflict.settings[0]), conflict.reason, conflict.fix)
        for conflict in check(config, machine(config.engine))
        if conflict.blocking
    ]


def _unprintable(config: RunConfig) -> Iterator[Problem]:
    for field, value in config:
        text = value.translate(_IN_TEMPLATES) if field == "chat_template" and value else value
        if isinstance(text, str) and not text.isprintable():
            yield Problem(field, value, "contains a non-printable character.", "Type it again.")


def _describe(model: str, problems: list[Problem]) -> ModelFacts | None:
    try:
        return describe_model(model)
    except ModelError as error:
        problems.append(error.problem)
    except (OSError, RuntimeError):
        problems.append(
            Problem("model", model, "cannot be searched for.", "Give a folder with config.json, or a hub id.")
        )
    return None


def _wrong_kind(task: Task, facts: ModelFacts) -> Iterator[Problem]:
    """Encoder-decoders need the task seq2seq, and other models must not have it; any model can classify."""
    if facts.is_encoder_decoder is None or not task.generates:
        return
    if task is Task.SEQ2SEQ and not facts.is_encoder_decoder:
        message = f"needs an encoder-decoder model; {facts.architecture} is decoder-only."
        yield Problem("task", task.value, message, "Choose a model such as T5 or BART, or the task sft.")
    elif task is not Task.SEQ2SEQ and facts.is_encoder_decoder:
        message = f"needs a decoder-only model; {facts.architecture} is an encoder-decoder."
        yield Problem("task", task.value, message, "Set task to seq2seq, or choose another model.")


def _wrong_packing(config: RunConfig, facts: ModelFacts) -> Iterator[Problem]:
    """Rows must not be concatenated for a family that is known to mix them."""
    if config.packing not in (Packing.PADDING_FREE, Packing.PACKED) or facts.path is None or not config.task.generates:
        return
    model_type = str(read_config(facts.path).get("model_type") or "")
    if reason := why_padded(model_type):
        message = f"does not fit {model_type}: {reason}, so rows would influence each other."
        yield Problem("packing", config.packing.value, message, "Set packing to auto or none.")


def disk_needed(config: RunConfig, facts: ModelFacts) -> int:
    """Estimates the bytes that a run writes at most: checkpoints (one more than are kept, during a save) and the result.

    A trained parameter takes 16 bytes in a checkpoint (weight, fp32 copy and Adam's two moments) and at most 8 in the
    result and its download. LoRA of rank r trains about 2r/d of a model of width d; a merged adapter takes as much as the
    base model, twice with its download. Unknown sizes count as 0.
    """
    parameters = facts.parameters or 0
    lora = min(1.0, 2 * config.lora_r / facts.hidden_size) if facts.hidden_size else 0.0
    trained = parameters if config.method is Method.FULL else parameters * lora
    merged = 8 * parameters if config.merge_adapter else 0
    return SPARE_BYTES + merged + int(trained * (16 * (config.save_total_limit + 1) + 8))


def _disk_problems(config: RunConfig, facts: ModelFacts, owner: str) -> Iterator[Problem]:
    folder = next(path for path in (get_settings().data_dir, *get_settings().data_dir.parents) if path.exists())
    needed, free = disk_needed(config, facts), shutil.disk_usage(folder).free
    if needed > free:
        message = (
            f"Checkpoints and result need about {byte_size(needed)}; the disk of {folder} has {byte_size(free)} free."
        )
        fix = "Free disk space, keep fewer checkpoints, or set LATHE_DATA_DIR to a larger disk."
        yield Problem("save_total_limit", config.save_total_limit, message, fix)
    if over := disk_quota.measured(owner).refusal(needed):
        yield Problem("save_total_limit", config.save_total_limit, over, f"Keep fewer checkpoints. {disk_quota.FIX}")
