"""Deletes files of ended runs, so that a run which is resumed at the same moment keeps them.

The run's row is locked while its status is checked and the files are renamed; Resume needs the same lock. The renamed files are
deleted afterwards.
"""

import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from training.units import byte_size
from worker.file_store import run_files
from worker.machine.sizes import Size, entries, size_of
from worker.settings import get_settings
from worker.store import database, history
from worker.store.tables import Run
from worker.store.uses import RunState

_ASIDE = ".freed-"

Choose = Callable[[Run], Sequence[Path]]
"""Takes the run's row, locked; returns files and folders in the run's folder, none if the run needs them all."""
Words = Callable[[Sequence[Path], Size], str]
"""Takes what is deleted and its size; returns the sentences for the run's events."""


def remove(run_id: str, choose: Choose, words: Words) -> tuple[Sequence[Path], Size]:
    """Deletes what `choose` returns, of a run that has ended, and notes it in the run's events; returns it and its size.

    Raises:
        OSError: a file cannot be moved; nothing is lost.
    """
    run_dir = get_settings().runs_dir / run_id
    aside, moved = run_dir / f"{_ASIDE}{secrets.token_hex(4)}", []
    try:
        with database.write() as session:
            run = session.get(Run, run_id, with_for_update=True)
            chosen = choose(run) if run is not None and run.status.ended else []
            if run is None or not chosen:
                return [], Size()
            size = sum(map(size_of, chosen), Size())
            # Listed under the lock: what another process moves aside now could still be put back.
            leftovers = [path for path in entries(run_dir) if is_aside(path)]
            aside.mkdir(mode=0o700)
            for path in chosen:
                moved.append(path)
                path.rename(aside / path.name)
            history.note(session=session, run=run, message=words(chosen, size))
    except BaseException:
        _put_back(aside, moved)
        raise
    for path in (aside, *leftovers):
        shutil.rmtree(path, ignore_errors=True)
    return chosen, size


def is_aside(path: Path) -> bool:
    """True for a folder of files that are being deleted."""
    return path.name.startswith(_ASIDE)


def _put_back(aside: Path, moved: Sequence[Path]) -> None:
    for path in moved:
        if (aside / path.name).exists():
            (aside / path.name).rename(path)
    if aside.is_dir():
        aside.rmdir()


def delete_checkpoints(run_id: str, choose: Callable[[RunState], Sequence[Path]], reason: str) -> Size:
    """Deletes checkpoints of an ended run, here and in the object store, and notes it with the `reason`, a sentence.

    `choose` takes the run's state in the transaction, and returns folders of checkpoints; none if the run needs them all.

    Raises:
        OSError: they cannot be moved; nothing is lost.
    """

    def words(chosen: Sequence[Path], size: Size) -> str:
        number = len(chosen)
        return f"Deleted {number} checkpoint{'s' if number > 1 else ''} ({byte_size(size.bytes)}). {reason}"

    deleted, size = remove(run_id, lambda run: choose(RunState.of(run)), words)
    if deleted:
        run_files.forget(run_id, *(path.name for path in deleted))
    return size
