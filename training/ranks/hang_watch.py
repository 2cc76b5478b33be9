"""Names a rank that has stopped while the others wait for it, long before their collective times out."""

import json
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from training.ranks.pace import Pace
from training.reports.report import Report
from training.run_folder.events import Note

HANG_SECONDS = 60.0
"""A rank hangs if it makes no progress for this long ..."""
LONGEST_TIMES = 5.0
"""... and for this many times the longest time that the run took between two batches so far."""
LOOK_SECONDS = 5.0
_WATCHED = "training"  # in other phases one rank may work while the others wait

Position = tuple[int, int, str]
"""Of a rank: batches and forward passes so far, the last step, and its phase."""


class HangWatch(threading.Thread):
    """A thread of each rank. It stores the rank's position at the process group's store, and if the rank stands still, reads all.

    The store answers although the ranks wait in a collective; a rank that was stopped leaves its last position there.
    """

    def __init__(self, pace: Pace, report: Report, store: Any, nodes: Sequence[str]) -> None:
        super().__init__(name="hang watch", daemon=True)
        self._pace, self._report, self._store, self._nodes = pace, report, store, nodes
        self._ended = threading.Event()
        self._longest = 0.0
        self._named = False

    def run(self) -> None:
        """Looks every few seconds, until `end` or the end of the store."""
        last, since = None, time.monotonic()
        while not self._ended.wait(LOOK_SECONDS):
            position, now = (self._pace.moves, self._pace.step, self._report.phase), time.monotonic()
            try:
                if position != last:
                    self._longest = max(self._longest, now - since if last else 0.0)
                    last, since, self._named = position, now, False
                    self._store.set(str(self._report.rank), json.dumps(position))
                elif now - since > max(HANG_SECONDS, LONGEST_TIMES * self._longest) and not self._named:
                    self._named = self._report_hung(self._positions(), now - since)
            except (RuntimeError, OSError):  # the store has ended, and with it the run
                return

    def end(self) -> None:
        """Ends the thread; returns at once."""
        self._ended.set()

    def _positions(self) -> dict[int, Position]:
        keys = {rank: str(rank) for rank in range(len(self._nodes))}
        return {rank: tuple(json.loads(self._store.get(key))) for rank, key in keys.items() if self._store.check([key])}

    def _report_hung(self, positions: Mapping[int, Position], seconds: float) -> bool:
        """Reports the ranks that the others wait for. False if there are none."""
        hung = behind(positions)
        # One of the waiting ranks speaks for all.
        if hung and self._report.rank == next(rank for rank in sorted(positions) if rank not in hung):
            for rank in hung:
                message = (
                    f"Rank {rank} on node {self._nodes[rank]} has made no progress in step {positions[rank][1] + 1:,} for "
                    f"{seconds:.0f} s, and the other ranks wait for it. See what it does: py-spy dump on its process; check its "
                    "GPU (dmesg), its disk and the files that it reads."
                )
                self._report.for_rank(Note(message=message, level="warning"))
        return bool(hung)


def behind(positions: Mapping[int, Position]) -> list[int]:
    """The ranks that have not come as far as the others, which therefore wait; none if one of them may do other work."""
    if not positions:
        return []
    furthest = max(moves for moves, _, _ in positions.values())
    found = [rank for rank, (moves, _, _) in sorted(positions.items()) if moves < furthest]
    return found if all(positions[rank][2] == _WATCHED for rank in found) else []


def watch(pace: Pace, report: Report, nodes: Sequence[str]) -> HangWatch:
    """Starts the watch of this rank; the process group must exist."""
    import torch.distributed as dist

    distributed = dist.distributed_c10d
    # A connection of its own: the rank's may be waiting for an answer.
    own: Any = distributed._get_default_store()
    store = distributed.PrefixStore("hang watch", own.clone())
    store.set_timeout(timedelta(seconds=HANG_SECONDS))
    started = HangWatch(pace, report, store, nodes)
    started.start()
    return started
