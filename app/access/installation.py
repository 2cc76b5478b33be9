"""Changes to the installation: its disk space and its machines."""

from collections.abc import Collection

from app.access import callers
from app.access.permissions import check_admin
from worker.disk import background
from worker.disk.offers import Freeable
from worker.store import database, machines


def free_disk(kinds: Collection[Freeable]) -> None:
    """Starts to free disk space; checkpoints only of runs that the caller may change.

    Raises:
        Forbidden: a kind belongs to the whole installation, and the caller is no admin.
    """
    for kind in kinds:
        if not kind.of_runs:
            check_admin("kinds", kind.value)
    caller = callers.current()
    background.disk().free(tuple(kinds), caller.may_change, caller.name)


def remove_machine(name: str) -> None:
    """Removes a machine that no longer reports.

    Raises:
        Forbidden: the caller is no admin.
    """
    check_admin("machine", name)
    with database.write() as session:
        machines.remove(session=session, name=name)


def uncordon(name: str) -> None:
    """Takes back a machine that was put aside after failures.

    Raises:
        Forbidden: the caller is no admin.
        NotCordoned: it is not put aside.
    """
    check_admin("machine", name)
    with database.write() as session:
        machines.uncordon(session=session, host=name)
