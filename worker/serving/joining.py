"""Models that join those of a process while it answers."""

import logging
import threading

from worker.serving import calls, memory, models
from worker.store import database, served_models
from worker.store.database import UNREACHABLE
from worker.store.tables import ServedModel

log = logging.getLogger(__name__)


class JoinedModel:
    """What a process is asked to load, in a thread: loading waits for the answer in progress."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def load(self, served: ServedModel) -> None:
        """Begins to load what a row names, unless that is done already."""
        if served.loads and not (self._thread and self._thread.is_alive()):
            self._thread = threading.Thread(target=_load, args=(served,), name=f"joining {served.id}", daemon=True)
            self._thread.start()


def _load(served: ServedModel) -> None:
    """Models that the process cannot load wait for a process of their own."""
    for name in served.loads:
        try:
            if models.downloading([name]):
                return
            is_served = _loaded(served, name)
            with database.write() as session:
                served_models.loaded(session=session, served_id=served.id, name=name, is_served=is_served)
        except UNREACHABLE as error:
            log.warning("the database is unreachable: %s", error)
            return


def _loaded(served: ServedModel, name: str) -> bool:
    try:
        with database.read() as session:
            source = models.source(session=session, name=name)
        memory.check_added(source, served.device)
    except models.NotServed as error:
        log.warning("served model %s cannot load %s: %s", served.id, name, error)
        return False
    return calls.load(served, source)
