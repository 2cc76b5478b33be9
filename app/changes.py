"""What people change: runs are stopped and resumed, data sets removed and mapped, each only by who may.

Pages and REST come through here; every function also raises what the function of worker/ that it calls raises.
"""

from app import callers
from worker import database, datasets, runs, submit


def stop(run_id: str) -> None:
    """Asks a run to stop.

    Raises:
        Forbidden: it belongs to somebody else.
    """
    submit.stop(_own_run(run_id))


def resume(run_id: str, *, step_down: bool = False) -> None:
    """Queues a failed or stopped run again.

    Raises:
        Forbidden: it belongs to somebody else.
    """
    submit.resume(_own_run(run_id), step_down=step_down)


def remove_dataset(dataset_id: str) -> None:
    """Deletes a data set.

    Raises:
        Forbidden: it belongs to somebody else.
    """
    _own_dataset(dataset_id)
    with database.write() as session:
        datasets.delete(session=session, dataset_id=dataset_id)


def save_mapping(dataset_id: str, columns: str | None) -> None:
    """Keeps with a data set which of its columns hold what.

    Raises:
        Forbidden: it belongs to somebody else.
    """
    _own_dataset(dataset_id)
    datasets.save_mapping(dataset_id, columns)


def _own_run(run_id: str) -> str:
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)
    callers.check_change("run", run.id, run.owner)
    return run.id


def _own_dataset(dataset_id: str) -> None:
    with database.read() as session:
        dataset = datasets.get(session=session, dataset_id=dataset_id)
    callers.check_change("dataset", dataset.id, dataset.owner)
