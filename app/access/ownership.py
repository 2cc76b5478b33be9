"""The ids of what the caller may change."""

from app.access.permissions import check_change
from app.documents import dataset as documents
from worker.store import database, evaluations, runs, sweeps


def own_run(run_id: str) -> str:
    """The id of a run that the caller may change.

    Raises:
        RunNotFound: there is none.
        Forbidden: another user owns it.
    """
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)
    check_change("run", run.id, run.owner)
    return run.id


def own_sweep(sweep_id: str) -> str:
    """The id of a sweep that the caller may change.

    Raises:
        SweepNotFound: there is none.
        Forbidden: another user owns it.
    """
    with database.read() as session:
        sweep = sweeps.get(session=session, sweep_id=sweep_id)
    check_change("sweep", sweep.id, sweep.owner)
    return sweep.id


def own_evaluation(evaluation_id: str) -> str:
    """The id of an evaluation of a run that the caller may change.

    Raises:
        EvaluationNotFound: there is none.
        Forbidden: another user owns its run.
    """
    with database.read() as session:
        item = evaluations.get(session=session, evaluation_id=evaluation_id)
    own_run(item.run_id)
    return item.id


def own_dataset(dataset_id: str) -> str:
    """The id of a data set that the caller may change; `dataset_id` may be its beginning.

    Raises:
        DatasetNotFound: there is none.
        Forbidden: another user owns it.
    """
    with database.read() as session:
        dataset = documents.find(session, dataset_id)
    check_change("dataset", dataset.id, dataset.owner)
    return dataset.id
