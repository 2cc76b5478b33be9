"""Seeing to it that a training process leaves when it is asked to, and that no rank waits for one that has died."""

import re
from dataclasses import dataclass

from worker.lease import steady
from worker.models import Request
from worker.reports import Seen
from worker.trainer import Trainer

# In these phases a rank may be done while another works on; in all others one that is gone has died.
_APART = {"saving", "answering"}
# torchrun says so when a rank has died, and then waits for the others.
_TORCHRUN_ENDS = re.compile(r"Sending process \d+ closing signal")
_LAUNCHER_SECONDS = 5.0


@dataclass(frozen=True)
class Graces:
    """Seconds until the training process is ended by force.

    `leaving`: after it was asked to; `saving`: the same, where it saves; `bereaved`: after a rank died; `exiting`: after it
    said that it is done, since libraries are known to hang then.
    """

    leaving: float = 8.0
    saving: float = 55.0
    bereaved: float = 15.0
    exiting: float = 5.0


class Watch:
    """Watches over one training process; `look` is to be called every moment."""

    def __init__(self, trainer: Trainer, seen: Seen, graces: Graces) -> None:
        self.forced = False
        self._trainer, self._seen, self._graces = trainer, seen, graces
        self._asked_at: float | None = None
        self._grace = graces.leaving
        self._died_at: float | None = None
        self._done_at: float | None = None

    def look(self, asked: Request | None) -> None:
        """Obeys what is asked, or ends what waits in vain."""
        if self._seen.finished:
            self._end_done()
        elif asked:
            self._leave()
        else:
            self._end_bereaved()

    def _leave(self) -> None:
        now = steady()
        self._asked_at = self._asked_at or now
        if self._seen.phase == "saving":
            self._grace = self._graces.saving
        self._trainer.ask_to_leave(self._seen.ranks.values())
        # Before any rank has begun there is nobody to ask, and nothing to save.
        if not self._seen.ranks or now - self._asked_at > self._grace:
            self._force()

    def _end_done(self) -> None:
        now = steady()
        self._done_at = self._done_at or now
        if now - self._done_at > self._graces.exiting:
            self._force()

    def _end_bereaved(self) -> None:
        now = steady()
        if not self._one_died():
            self._died_at = None
            return
        self._died_at = self._died_at or now
        waited = now - self._died_at - self._graces.bereaved
        if waited > _LAUNCHER_SECONDS:
            self._force()
        elif waited > 0:
            # The launcher is left to say in the log what it knows of the death.
            self.forced = True
            self._trainer.kill_ranks(self._seen.ranks.values())

    def _one_died(self) -> bool:
        if self._seen.failures or any(_TORCHRUN_ENDS.search(line) for line in self._seen.log):
            return True
        return self._seen.phase not in _APART and self._trainer.any_gone(self._seen.ranks.values())

    def _force(self) -> None:
        self.forced = True
        self._trainer.kill()
