"""Deletes checkpoints of ended runs, so that a run which is resumed at the same moment keeps them.

The run's row is locked while its status is checked and the checkpoints are renamed; Resume needs the same lock. The renamed
files are deleted afterwards.
"""

import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from training.units import byte_size
from worker.disk.sizes import Size, entries, size_of
from worker.file_store import run_files
from worker.settings import get_settings
from worker.store import database, history
from worker.store.run_states import RunState
from worker.store.tables import Run

_ASIDE = ".freed-"


def delete(run_id: str, choose: Callable[[RunState], Sequence[Path]], reason: str) -> Size:
    """Deletes the checkpoints that `choose` returns for the run's state in the transaction, and notes it in the run's events.

    Args:
        choose: Returns folders of checkpoints of this run; none if the run needs them all.
        reason: A sentence for the event.

    Raises:
        OSError: they cannot be moved; nothing is lost.
    """
    run_dir = get_settings().runs_dir / run_id
    aside, moved = run_dir / f"{_ASIDE}{secrets.token_hex(4)}", []
    try:
        with database.write() as session:
            run = session.get(Run, run_id, with_for_update=True)
            chosen = choose(RunState.of(run)) if run is not None and run.status.ended else []
            if run is None or not chosen:
                return Size()
            size = sum(map(size_of, chosen), Size())
            # Listed under the lock: what another process moves aside now could still be put back.
            leftovers = [path for path in entries(run_dir) if is_aside(path)]
            aside.mkdir(mode=0o700)
            for path in chosen:
                moved.append(path)
                path.rename(aside / path.name)
            message = f"Deleted {_counted(len(chosen))} ({byte_size(size.bytes)}). {reason}"
            history.note(session=session, run_id=run.id, attempt=run.attempt, message=message)
    except BaseException:
        _put_back(aside, moved)
        raise
    for path in (aside, *leftovers):
        shutil.rmtree(path, ignore_errors=True)
    run_files.forget(run_id, *(path.name for path in chosen))
    return size


def is_aside(path: Path) -> bool:
    """True for a folder of checkpoints that are being deleted."""
    return path.name.startswith(_ASIDE)


def _put_back(aside: Path, moved: Sequence[Path]) -> None:
    for path in moved:
        if (aside / path.name).exists():
            (aside / path.name).rename(path)
    if aside.is_dir():
        aside.rmdir()


def _counted(number: int) -> str:
    return "1 checkpoint" if number == 1 else f"{number} checkpoints"
