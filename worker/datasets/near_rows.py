"""Finds the near duplicates of data sets together, in a process whose progress any process can read (training/tokens/groups.py)."""

import logging
import subprocess
import threading
from collections.abc import Sequence
from contextlib import ExitStack

from training.tokens.groups import known_near_groups
from training.tokens.make_store import read_progress
from training.tokens.store import TokenStore, is_being_made, joined
from worker.datasets import token_stores
from worker.datasets.token_stores import TokenCount
from worker.machine import programs
from worker.machine.sizes import size_of

log = logging.getLogger(__name__)

_running: set[tuple[str, ...]] = set()
_failed: set[tuple[str, ...]] = set()
_starting = threading.Lock()


def measure(stores: Sequence[TokenStore]) -> TokenCount:
    """Starts to compare the rows of these stores, unless that is done or running, or has failed in this process."""
    store, first, key = joined(stores), stores[0].folder, tuple(str(one.folder) for one in stores)
    with _starting, ExitStack() as turn:
        if known_near_groups(store) is not None:
            return TokenCount("done", store.rows, store.rows)
        if key in _running or is_being_made(first):
            return TokenCount("running", *(read_progress(first)))
        if key in _failed:
            return TokenCount("failed")
        waiting = TokenCount("running", 0, store.rows)
        if (end := token_stores.turns.begun()) is None:
            return waiting  # for others: who asks again starts it
        turn.callback(end)
        length = sum(size_of(one.folder).bytes for one in stores)
        child = programs.start(
            programs.MAKE_GROUPS,
            list(key),
            programs.MAKE_GROUPS.limits(length=length, file_bytes=programs.MAKE_GROUPS.memory_bytes + 16 * length),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        _running.add(key)
        work = child, key, turn.pop_all()
    threading.Thread(target=_collect, args=work, name="near duplicates", daemon=True).start()
    return waiting


def _collect(child: "subprocess.Popen[bytes]", key: tuple[str, ...], turn: ExitStack) -> None:
    """Waits for the process, whose turn ends with it."""
    with turn:
        code = child.wait()
    if code:
        log.warning("comparing the rows of %s ended with exit code %s", ", ".join(key), code)
        _failed.add(key)
    _running.discard(key)
