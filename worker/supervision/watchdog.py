"""Makes sure that a training process stops when asked, and that no rank waits for one that has died."""

import re
from dataclasses import dataclass
from pathlib import Path

from worker.machine.sizes import Size, entries, size_of
from worker.store.tables import Request
from worker.supervision.lease import steady
from worker.supervision.report_reader import AttemptProgress
from worker.supervision.training_process import TrainingProcess

# In these phases a rank may finish before the others; in all other phases a missing rank has died.
_APART = {"saving", "answering"}
# torchrun prints this when a rank has died, and then waits for the others.
_TORCHRUN_ENDS = re.compile(r"Sending process \d+ closing signal")
_LAUNCHER_SECONDS = 5.0
_STEPS = 2  # a request may come at the beginning of a step, and the next one may be longer


@dataclass(frozen=True)
class Graces:
    """Seconds until the training process is killed.

    `leaving`: after the request to stop, or twice its longest step if that is more; `saving`: without a byte more in its folder,
    while it saves; `rank_died`: after a rank died; `exiting`: after it reported its end, since some libraries hang at exit.
    """

    leaving: float = 8.0
    saving: float = 55.0
    rank_died: float = 15.0
    exiting: float = 5.0


class Watchdog:
    """Watches one training process, which saves in `folder`; call `check` regularly."""

    def __init__(self, trainer: TrainingProcess, seen: AttemptProgress, graces: Graces, folder: Path) -> None:
        self.forced = False
        self._folder, self._saved = folder, Size()
        self._trainer, self._seen, self._graces = trainer, seen, graces
        self._asked_at: float | None = None
        self._progress_at = 0.0
        self._died_at: float | None = None
        self._done_at: float | None = None

    def check(self, asked: Request | None) -> None:
        """Handles the request, or kills ranks that wait for a dead one."""
        if self._seen.finished:
            self._end_done()
        elif asked:
            self._stop()
        else:
            self._end_surviving_ranks()

    def _stop(self) -> None:
        now = steady()
        self._asked_at = self._asked_at or now
        self._trainer.request_stop(self._seen.ranks.values())
        grace = max(self._graces.leaving, _STEPS * self._seen.step_seconds)
        if self._seen.phase == "saving":
            saved = sum((size_of(path) for path in entries(self._folder) if path.is_dir()), Size())
            if saved != self._saved or not self._progress_at:
                self._saved, self._progress_at = saved, now
        if self._progress_at:  # what follows a save, such as hashing it, has its time too
            grace = max(grace, self._graces.saving)
        # Before any rank has started there is nothing to signal or save.
        if not self._seen.ranks or now - max(self._asked_at, self._progress_at) > grace:
            self._force()

    def _end_done(self) -> None:
        now = steady()
        self._done_at = self._done_at or now
        if now - self._done_at > self._graces.exiting:
            self._force()

    def _end_surviving_ranks(self) -> None:
        now = steady()
        if not self._one_died():
            self._died_at = None
            return
        self._died_at = self._died_at or now
        waited = now - self._died_at - self._graces.rank_died
        if waited > _LAUNCHER_SECONDS:
            self._force()
        elif waited > 0:
            # The launcher stays alive to log why the rank died.
            self.forced = True
            self._trainer.kill_ranks(self._seen.ranks.values())

    def _one_died(self) -> bool:
        if self._seen.failures or any(_TORCHRUN_ENDS.search(line) for line in self._seen.log):
            return True
        return self._seen.phase not in _APART and self._trainer.any_gone(self._seen.ranks.values())

    def _force(self) -> None:
        self.forced = True
        self._trainer.kill()
