"""What a caller may change: their own runs and data sets; an admin and the user who runs the server, all.

`OwnRun`, `OwnSweep` and `OwnEvaluation` are parameters of routes: the id of what the path names, once the caller may change it.
"""

from typing import Annotated

from fastapi import Depends

from app.access import callers
from app.documents import dataset as documents
from training.errors import UserError
from worker.store import database, evaluations, runs, sweeps
from worker.store.sight import ANOTHER
from worker.store.tables import LOCAL, Dataset, PromptSet, Run, ServedModel, Sweep


class Forbidden(UserError):  # noqa: N818
    """The caller may not change another user's run or data set; the message names the owner if the caller sees them."""

    status = 403

    def __init__(self, field: str, value: str | None, message: str, fix: str) -> None:
        super().__init__(field, value, message, fix)
        callers.refuse(self.problem)


def check_change(field: str, value: str, owner: str) -> None:
    """Checks that the caller may change what `owner` owns.

    Raises:
        Forbidden: they may not; `field` and `value` name the object, such as "run" and its id.
    """
    if callers.current().may_change(owner):
        return
    if callers.current().sees_all:
        name = "the user who runs the server" if owner == LOCAL else owner
        raise Forbidden(field, value, f"belongs to {name}.", f"Ask {name} or an admin to change it.")
    raise Forbidden(field, value, f"belongs to {ANOTHER}.", "Ask an admin to change it.")


def own(kind: str, item: Run | Sweep | Dataset | ServedModel | PromptSet) -> str:
    """The id of `item`, which the caller may change; `kind` names it in the error.

    Raises:
        Forbidden: another user owns it.
    """
    check_change(kind, item.id, item.owner)
    return item.id


def check_admin(field: str, value: str | None, message: str = "concerns the whole installation.") -> None:
    """Checks that the caller may change what concerns all users; `message` says what that is.

    Raises:
        Forbidden: the caller is neither an admin nor the user who runs the server.
    """
    if not callers.current().administers:
        raise Forbidden(field, value, message, "Ask an admin.")


def own_run(run_id: str) -> str:
    """The id of a run that the caller may change.

    Raises:
        RunNotFound: there is none.
        Forbidden: another user owns it.
    """
    with database.read() as session:
        return own("run", runs.get(session=session, run_id=run_id))


def own_sweep(sweep_id: str) -> str:
    """The id of a sweep that the caller may change.

    Raises:
        SweepNotFound: there is none.
        Forbidden: another user owns it.
    """
    with database.read() as session:
        return own("sweep", sweeps.get(session=session, sweep_id=sweep_id))


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
        return own("dataset", documents.find(session, dataset_id))


OwnRun = Annotated[str, Depends(own_run)]
OwnSweep = Annotated[str, Depends(own_sweep)]
OwnEvaluation = Annotated[str, Depends(own_evaluation)]
