"""Searches of the rows of stored data sets. Each streams through its file in a process, with progress, and can be stopped."""

import contextvars
import json
import subprocess
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import StrEnum, auto
from functools import partial
from pathlib import Path
from typing import Any

from training.errors import DataError
from worker.datasets import checking
from worker.machine import programs
from worker.machine.programs import Result

LONGEST_TEXT = 200
RUNNING = 4
"""Searches at a time; another one stops the one that was asked for the longest time ago."""

_KEPT = 12
_UNWATCHED_SECONDS = 60.0


class SearchState(StrEnum):
    RUNNING = auto()
    DONE = auto()
    STOPPED = auto()
    FAILED = auto()


@dataclass
class Search:
    """A search: the rows found, as in worker/datasets/row_pages.py, and the number of rows `read` so far.

    `more` is true if it ended at its limit of rows found. `problem` says why it failed.
    """

    path: Path
    text: str
    matches: list[dict[str, Any]] = field(default_factory=list)
    read: int = 0
    more: bool = False
    state: SearchState = SearchState.RUNNING
    problem: str = ""
    unwatched: bool = False
    asked_at: float = field(default_factory=time.monotonic)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def stop(self) -> None:
        """Stops it; the rows found stay."""
        self._end(SearchState.STOPPED)

    def wait(self, count: int, seconds: float) -> None:
        """Waits until `count` rows are found, until it ends, or for some seconds."""
        self.asked_at = time.monotonic() + seconds
        with self._changed:
            self._changed.wait_for(lambda: len(self.matches) >= count or self.state is not SearchState.RUNNING, seconds)

    def run(self) -> None:
        """Reads the file to its end, until the limit of rows found, or until it is stopped."""
        file_format = self.path.name.partition(".")[2]
        arguments = [str(self.path), file_format, f"--search={self.text}"]
        try:
            limits = checking.limits_for(self.path)
            with programs.running_limited(programs.BROWSE, arguments, limits, stderr=subprocess.DEVNULL) as process:
                assert process.stdout
                for line in process.stdout:
                    self._take(json.loads(line))
                    if self.state is not SearchState.RUNNING:
                        process.kill()
            if self.state is SearchState.RUNNING and process.returncode:
                error = checking.crash_error(limits, Result(process.returncode))
                self._end(SearchState.FAILED, f"The file {error.message} {error.fix}")
        except DataError as error:
            self._end(SearchState.FAILED, f"The file {error.message} {error.fix}")
        except (OSError, ValueError) as error:
            self._end(SearchState.FAILED, f"The file cannot be read: {error}.")
        self._end(SearchState.DONE)

    def _take(self, line: dict[str, Any]) -> None:
        with self._changed:
            if "read" in line:
                self.read, self.more = line["read"], line.get("more", False)
            else:
                self.matches.append(line)
                self.read = max(self.read, line["row"])
            self._changed.notify_all()
        if time.monotonic() - self.asked_at > _UNWATCHED_SECONDS:
            self.unwatched = True
            self.stop()

    def _end(self, state: SearchState, problem: str = "") -> None:
        with self._changed:
            if self.state is SearchState.RUNNING:
                self.state, self.problem = state, problem
            self._changed.notify_all()


_searches: OrderedDict[tuple[Path, str], Search] = OrderedDict()
_lock = threading.Lock()


def search(path: Path, text: str, *, again: bool = False) -> Search:
    """The search for a text, in any case, in the rows of a data file; starts it unless it is known.

    With `again`, it starts anew if it was stopped or failed.
    """
    key = (path, plain(text).casefold())
    with _lock:
        known = _searches.get(key)
        if known is None or known.unwatched or (again and known.state in (SearchState.STOPPED, SearchState.FAILED)):
            known = Search(path, plain(text))
            _searches[key] = known
            _make_room()
            run = partial(
                contextvars.copy_context().run, known.run
            )  # its program is the caller's (worker/machine/turns.py)
            threading.Thread(target=run, name=f"search of {path.name}", daemon=True).start()
        known.asked_at = time.monotonic()
        _searches.move_to_end(key)
    return known


def plain(text: str) -> str:
    """The text as it can be searched for: without what a command cannot contain, at most `LONGEST_TEXT` characters."""
    return text.replace("\0", "").encode("utf-8", "ignore").decode().strip()[:LONGEST_TEXT]


def _make_room() -> None:
    running = [search for search in _searches.values() if search.state is SearchState.RUNNING]
    for search in running[: max(len(running) - RUNNING, 0)]:
        search.unwatched = True
        search.stop()
    while len(_searches) > _KEPT:
        _searches.popitem(last=False)[1].stop()
