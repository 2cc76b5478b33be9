"""Changes by users: stopping and resuming runs, removing and mapping data sets, each with a permission check.

Pages and REST use these functions, which also raise the errors of the worker functions that they call.
"""

from app.access.permissions import check_change
from worker.datasets import datasets
from worker.runs import submit
from worker.store import database, runs


def stop(run_id: str) -> None:
    """Requests a run to stop.

    Raises:
        Forbidden: another user owns it.
    """
    submit.stop(_own_run(run_id))


def resume(run_id: str, *, step_down: bool = False) -> None:
    """Requeues a failed or stopped run.

    Raises:
        Forbidden: another user owns it.
    """
    submit.resume(_own_run(run_id), step_down=step_down)


def remove_dataset(dataset_id: str) -> None:
    """Deletes a data set.

    Raises:
        Forbidden: another user owns it.
    """
    _own_dataset(dataset_id)
    with database.write() as session:
        datasets.delete(session=session, dataset_id=dataset_id)


def save_mapping(dataset_id: str, columns: str | None) -> None:
    """Saves the column mapping of a data set.

    Raises:
        Forbidden: another user owns it.
    """
    _own_dataset(dataset_id)
    datasets.save_mapping(dataset_id, columns)


def _own_run(run_id: str) -> str:
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)
    check_change("run", run.id, run.owner)
    return run.id


def _own_dataset(dataset_id: str) -> None:
    with database.read() as session:
        dataset = datasets.get(session=session, dataset_id=dataset_id)
    check_change("dataset", dataset.id, dataset.owner)
