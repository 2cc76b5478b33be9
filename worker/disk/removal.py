"""Deletes files of ended runs, so that a run which is resumed at the same moment keeps them.

The run's row is locked while its status is checked and the files are renamed; Resume needs the same lock. The renamed files are
deleted afterwards.
"""

import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from worker.machine.sizes import Size, entries, size_of
from worker.settings import get_settings
from worker.store import database, history
from worker.store.tables import Run

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
