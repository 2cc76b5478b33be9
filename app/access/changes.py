"""Changes by users to runs, the queue, data sets and the installation, each with a permission check.

Pages and REST use these functions. Each raises Forbidden if the caller owns neither what it changes nor the installation, and
the errors of the worker functions that it calls. What only one of them
needs is imported there, since every command would wait for it.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from app.access import callers, sharing
from app.access.permissions import Forbidden, check_admin, check_change, own_dataset, own_evaluation, own_run, own_sweep
from training.config.choices import Strategy
from training.config.data_sets import FIELDS
from worker import celery_app
from worker.datasets import datasets
from worker.runs import requests
from worker.settings import ROOT
from worker.store import database, evaluations, machines, runs, waiting
from worker.store.sight import ANOTHER_RUN
from worker.store.submissions import Submission
from worker.store.tables import Build, Evaluation, Run

if TYPE_CHECKING:
    from worker.disk.freeing import Freeable
    from worker.store.tables.sweep_values import SweepSpec


_SAMPLE = ROOT / "static" / "starter" / "quickstart.yaml"


def start_sample() -> Run:
    """Queues the sample run for the caller: the starter model learns to write orders as JSON. Its data are stored as data sets.

    Raises:
        ConfigError: the run is refused, for example because the disk is full.
        DataError: the sample data cannot be read.
    """
    from training.config.yaml_file import read_config
    from worker.runs import submit

    caller, config = callers.current(), read_config(_SAMPLE)
    stored = {
        name: datasets.add_file(path=ROOT / path, name=(ROOT / path).name, owner=caller.name).id
        for name in FIELDS
        if (path := getattr(config, name))
    }
    config = config.model_copy(update={**stored, "model": str(ROOT / config.model)})
    return submit.submit(config, allowed=caller.allowed, owner=caller.name)


def stop(run_id: str) -> None:
    """Requests a run to stop."""
    requests.stop(own_run(run_id))


def resume(
    run_id: str, *, step_down: bool = False, strategy: Strategy | None = None, num_processes: int | None = None
) -> None:
    """Requeues a failed, stopped or diverged run, if given with another strategy or number of processes.

    Raises:
        UserError: its checkpoint cannot be divided so.
    """
    own, allowed = own_run(run_id), callers.current().allowed
    requests.resume(own, step_down=step_down, strategy=strategy, num_processes=num_processes, allowed=allowed)


def start_sweep(spec: "SweepSpec", submission: Submission | None = None) -> str:
    """Queues the runs of a sweep, which belong to the caller; returns its id, that of the first sweep for a known `submission`.

    Raises:
        ConfigError: no run can start.
    """
    from worker.sweeps import lifecycle

    caller = callers.current()
    return lifecycle.start(spec, allowed=caller.allowed, owner=caller.name, submission=submission).id


def stop_sweep(sweep_id: str) -> None:
    """Requests all runs of a sweep to stop."""
    from worker.sweeps import lifecycle

    lifecycle.stop(own_sweep(sweep_id))


def delete_sweep(sweep_id: str) -> None:
    """Deletes a sweep with its runs, which have all ended.

    Raises:
        SweepActive: one of its runs is queued or running.
    """
    from worker.sweeps import lifecycle

    lifecycle.delete(own_sweep(sweep_id))


def edit(
    run_id: str,
    *,
    name: str | None = None,
    notes: str | None = None,
    tags: Collection[str] | None = None,
    add_tags: Collection[str] = (),
    remove_tags: Collection[str] = (),
    pinned: bool | None = None,
    archived: bool | None = None,
    held: bool | None = None,
    priority: int | None = None,
    users: Collection[str] | None = None,
) -> None:
    """Changes what users set about a run: all of it, or nothing if a part is refused. None leaves a value as it is.

    `users` are those with whom it is shared.

    Raises:
        Forbidden: another user owns it, or a user who is no admin asks for more than the normal priority.
        UserError: it cannot be shared with one of the users.
    """
    own = own_run(run_id)
    if priority is not None and priority > waiting.NORMAL:
        check_admin("priority", waiting.priority_word(priority), "lets the run start before those of others.")
    with database.write() as session:
        run = runs.locked(session=session, run_id=own)
        if add_tags or remove_tags:
            removed = {tag.strip().lower() for tag in remove_tags}
            tags = [*(tag for tag in (run.tags if tags is None else tags) if tag not in removed), *add_tags]
        runs.describe(session=session, run_id=own, name=name, notes=notes, tags=tags, pinned=pinned)
        if archived is not None:
            runs.set_archived(session=session, run_id=own, archived=archived)
        if held is not None:
            waiting.hold(session=session, run_id=own, held=held)
        if priority is not None:
            waiting.set_priority(session=session, run_id=own, priority=priority)
        if users is not None:
            sharing.store(session, "run", own, users)
    if held is False:
        celery_app.notify(own)


def delete(run_id: str) -> None:
    """Deletes an ended run with its folder."""
    own = own_run(run_id)
    with database.write() as session:
        runs.delete(session=session, run_id=own)


def evaluate(run_id: str, data: str, values: dict[str, Any]) -> Evaluation:
    """Queues an evaluation of a run on a data set."""
    from worker.evaluations import submit as evaluating

    caller = callers.current()
    return evaluating.submit(own_run(run_id), values, data=data, allowed=caller.allowed, owner=caller.name)


def stop_evaluation(evaluation_id: str) -> None:
    """Stops a queued evaluation, or asks a running one to stop."""
    own = own_evaluation(evaluation_id)
    with database.write() as session:
        evaluations.request_stop(session=session, evaluation_id=own)


def delete_evaluation(evaluation_id: str) -> None:
    """Deletes an ended evaluation with its answers."""
    from worker.evaluations import submit as evaluating

    evaluating.remove(own_evaluation(evaluation_id))


def build(run_id: str, form: str) -> Build:
    """Queues the build of a form of a run's result.

    Raises:
        Forbidden: another user owns the run.
        UserError: the run cannot have it.
    """
    from worker import builds

    return builds.submit(own_run(run_id), form, owner=callers.current().name)


def stop_build(run_id: str, form: str) -> Build:
    """Stops a queued build, or asks a running one to stop. Raises Forbidden if another user owns the run."""
    from worker.store import builds

    own = own_run(run_id)
    with database.write() as session:
        return builds.request_stop(session=session, run_id=own, form=form)


def move(run_id: str, before: str | None) -> None:
    """Moves a queued run before another one, or to the end of the queue.

    Raises:
        Forbidden: another user owns it, or it would pass another user's run.
    """
    own = own_run(run_id)
    with database.write() as session:
        passed = waiting.move(session=session, run_id=own, before=before)
        _check_passing(own, passed)


def pause_queue(*, paused: bool) -> None:
    """Pauses the queue for everybody, or lets runs start again."""
    check_admin("queue", None, "is paused and resumed by an admin.")
    with database.write() as session:
        if paused:
            waiting.pause(session=session, by=callers.current().name)
        else:
            waiting.unpause(session=session)
        queued = [] if paused else waiting.startable(session=session)
    if queued:
        celery_app.notify(queued[0].id)


def remove_dataset(dataset_id: str) -> None:
    """Deletes a data set for the caller; it stays with other users who uploaded the same file.

    Raises:
        Forbidden: another user owns it, and the caller did not upload it.
    """
    user = callers.current().name
    with database.read() as session:
        uploaded = user in datasets.uploaded_by(session=session, dataset_id=dataset_id)
    if not uploaded:
        own_dataset(dataset_id)
    with database.write() as session:
        datasets.remove(session=session, dataset_id=dataset_id, user=user)


def save_mapping(dataset_id: str, columns: str | None) -> None:
    """Saves the column mapping of a data set."""
    own_dataset(dataset_id)
    datasets.save_mapping(dataset_id, columns)


def delete_shared_diagnosis(diagnosis_id: str) -> None:
    """Deletes a shared diagnosis with its log.

    Raises:
        DiagnosisNotFound: there is none.
        Forbidden: another user shared it.
    """
    from worker.runs import shared_diagnoses

    shared = shared_diagnoses.get(diagnosis_id)
    check_change("diagnosis", shared.id, shared.owner)
    shared_diagnoses.delete(shared.id)


def free_disk(kinds: Collection["Freeable"]) -> None:
    """Starts to free disk space; checkpoints only of runs that the caller may change.

    Raises:
        Forbidden: a kind belongs to the whole installation, and the caller is no admin.
    """
    for kind in kinds:
        if not kind.of_runs:
            check_admin("kinds", kind.value)
    from worker.disk import background

    caller = callers.current()
    background.disk().free(tuple(kinds), caller.may_change, caller.name)


def remove_machine(name: str) -> None:
    """Removes a machine that no longer reports."""
    check_admin("machine", name)
    with database.write() as session:
        machines.remove(session=session, name=name)


def uncordon(name: str) -> None:
    """Takes back a machine that was put aside after failures. Raises NotCordoned if it is not put aside."""
    check_admin("machine", name)
    with database.write() as session:
        machines.uncordon(session=session, host=name)


def _check_passing(run_id: str, passed: list[Run]) -> None:
    caller = callers.current()
    others = [run for run in passed if not caller.may_change(run.owner)]
    if others:
        passed_run = f"{others[0].name!r} of {others[0].owner}" if caller.sees_all else ANOTHER_RUN
        message = f"would start before {passed_run}."
        error = Forbidden("run", run_id, message, "Ask an admin to move it.")
        callers.refuse(error.problem)
        raise error
