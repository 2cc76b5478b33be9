"""Deletes checkpoints of ended runs, here and in the object store."""

from collections.abc import Callable, Sequence
from pathlib import Path

from training.units import byte_size
from worker.disk import removal
from worker.file_store import run_files
from worker.machine.sizes import Size
from worker.store.uses import RunState


def delete(run_id: str, choose: Callable[[RunState], Sequence[Path]], reason: str) -> Size:
    """Deletes the checkpoints that `choose` returns for the run's state in the transaction, and notes it in the run's events.

    Args:
        choose: Returns folders of checkpoints of this run; none if the run needs them all.
        reason: A sentence for the event.

    Raises:
        OSError: they cannot be moved; nothing is lost.
    """

    def words(chosen: Sequence[Path], size: Size) -> str:
        return f"Deleted {_counted(len(chosen))} ({byte_size(size.bytes)}). {reason}"

    deleted, size = removal.remove(run_id, lambda run: choose(RunState.of(run)), words)
    if deleted:
        run_files.forget(run_id, *(path.name for path in deleted))
    return size


def _counted(number: int) -> str:
    return "1 checkpoint" if number == 1 else f"{number} checkpoints"
