"""What users ask of a stored run: to stop, or to go on."""

from collections.abc import Iterator

from sqlmodel import Session

from training import rules
from training.config.choices import Strategy
from training.config.fields import ConfigError
from training.config.run_config import Changes, RunConfig, stepped_down
from training.errors import Problem
from training.run_folder import checkpoints
from training.run_folder.checkpoint_layout import CheckpointLayout, check_resume
from worker import allowed_paths, celery_app, disk_quota
from worker.allowed_paths import EVERYTHING, AllowedPaths
from worker.datasets import run_data
from worker.datasets.run_data import DATASET_ID, sources_of
from worker.results import fetching
from worker.runs import reward_models
from worker.runs.checks import adapter_problems, model_problems, quota_problems, teacher_problems
from worker.runs.settle import FILES, Settled, is_text, machine_of, resolve, settle
from worker.settings import get_settings
from worker.store import accounts, database, history, runs, sight
from worker.store.tables import LOCAL, Run


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
    allowed: AllowedPaths = EVERYTHING,
) -> Run:
    """Queues a failed, stopped or diverged run again; with `step_down`, with the settings proposed after an out-of-memory error.

    With `strategy` or `num_processes`, its checkpoint is divided anew.

    Raises:
        RunNotFound, NotResumable: as `runs.resume`.
        UserError: the checkpoint cannot be divided so.
        ConfigError: its model or data no longer exist, `allowed` and its owner's do not allow them, or its owner's quota does not
            allow it.
    """
    with database.read_everything() as session:
        stored = runs.get(session=session, run_id=run_id)
    over = disk_quota.measured(stored.owner).refusal(0)
    missing = _missing(stored) if stored.status.resumable else []
    with database.write() as session:
        changes = _sharding_changes(session, run_id, strategy, num_processes)
        run = runs.resume(session=session, run_id=run_id, step_down=step_down, changes=changes)
        settled = admitted(run, allowed=allowed)
        problems = _unseen(settled) or missing
        problems += quota_problems(session, settled, more=0)
        problems += [Problem("run", run.id, over, disk_quota.FIX)] if over else []
        problems += model_problems(settled)
        if problems:
            raise ConfigError(problems)
    celery_app.notify(run.id)
    return run


def _missing(run: Run) -> list[Problem]:
    """The data and models of the run that no longer exist. Data sets are downloaded: not in the transaction that queues it."""
    try:
        resolve(admitted(run).typed)
    except ConfigError as error:
        return error.problems
    return []


def can_continue(run: Run) -> bool:
    """True if the run has a checkpoint from which Resume continues; without one Resume trains from the first step."""
    if fetching.is_elsewhere(run):
        with database.read_everything() as session:
            return history.has_checkpoint(session=session, run_id=run.id)
    return bool(checkpoints.sealed(get_settings().runs_dir / run.id))


def _sharding_changes(session: Session, run_id: str, strategy: Strategy | None, num_processes: int | None) -> Changes:
    """The settings with which a run resumes on other processes. The accumulation changes so that the global batch size stays."""
    if strategy is None and num_processes is None:
        return {}
    run = runs.get(session=session, run_id=run_id)
    before = admitted(run).typed
    changes: Changes = {}
    if strategy is not None:
        changes["strategy"] = strategy.value
    if num_processes is not None:
        changes["num_processes"] = num_processes
    after = stepped_down(before, changes)
    rows = after.micro_batch_size * after.num_processes // after.sequence_parallel_size
    if rows and before.global_batch_size % rows == 0:
        changes["gradient_accumulation_steps"] = before.global_batch_size // rows
        after = stepped_down(before, changes)
    if conflicts := rules.problems(after, machine_of(after.engine)):
        raise ConfigError(conflicts[:1])
    checkpoint = next(iter(checkpoints.sealed(get_settings().runs_dir / run.id)), None)
    if checkpoint and (layout := CheckpointLayout.read(checkpoint)):
        check_resume(layout, after)
    return {name: value for name, value in changes.items() if getattr(before, name) != value}


def _unseen(settled: Settled) -> list[Problem]:
    """The data and the adapter that the run's owner or the user does not see: the row may come from an archive."""
    problems: list[Problem] = []
    for _ in as_both_see(settled.owner):
        seen = settle(settled.typed)
        models = (*adapter_problems(settled.typed, seen.adapter), *teacher_problems(seen))
        scoring = reward_models.problems_of_run(seen)
        problems = problems or [*run_data.unseen(settled.typed), *models, *scoring]
    return problems


_CLONE_FIX = "Clone the run, which checks its settings again."


def admitted(run: Run, *, allowed: AllowedPaths = EVERYTHING) -> Settled:
    """The configuration of a stored run, with its changed settings, if both its owner and the caller may name all that it names.

    `allowed` is what the caller may name.

    Raises:
        ConfigError: one problem for each setting that is wrong or names what one of them may not name.
    """
    config = run.used
    owners = EVERYTHING if run.owner == LOCAL else allowed_paths.allowed()
    for paths in (owners, allowed):
        settled = settle(config, paths, run.owner)
        if problems := [*settled.refused, *(_paths(config) if paths.data is not None else ())]:
            raise ConfigError(problems)
    return settled


def as_both_see(owner: str) -> Iterator[None]:
    """Runs the body of a loop once with the caller's view of the database and, if it differs, once with that of a run's owner."""
    with database.read() as session:
        views = {sight.user(), accounts.view_of(session=session, name=owner)}
    for user in views:
        with sight.seen_by(user):
            yield


def _paths(config: RunConfig) -> Iterator[Problem]:
    """The paths in place of which a run that was submitted has an id or the content of the file."""
    for field, source in sources_of(config):
        if not DATASET_ID.fullmatch(source.path):
            yield Problem(field, source.path, "is a path; a stored run has the id of a data set.", _CLONE_FIX)
    for field in FILES:
        value = getattr(config, field)
        if value and not is_text(config, field):
            yield Problem(field, value, "is a path; a stored run has the text.", _CLONE_FIX)
