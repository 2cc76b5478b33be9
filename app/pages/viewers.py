"""What each open page shows, kept by the server, so that only what is new is sent, in the order in which things happened.

A page's timer and its person may call at the same time; each waits for the other, so that what was sent last is known. A page
that is not known any more, after a restart, is sent whole.
"""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from app.cache import TimedCache

Shown = TypeVar("Shown")
Answer = TypeVar("Answer")


class Viewer(Generic[Shown]):
    """One open page: what it shows, None before it was sent anything."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.shown: Shown | None = None


class Viewers(Generic[Shown]):
    """All open pages of a kind, the latest of them; by Gradio's session."""

    def __init__(self, seconds: float = 6 * 3600.0, size: int = 500) -> None:
        self._known: TimedCache[str, Viewer[Shown]] = TimedCache(seconds, size)

    def serve(self, session: str | None, answer: Callable[[Shown | None], tuple[Shown | None, Answer]]) -> Answer:
        """Calls `answer` with what the page shows, alone, and remembers what it shows then."""
        viewer = self._known.get(session or "", Viewer[Shown])
        with viewer.lock:
            viewer.shown, answered = answer(viewer.shown if session else None)
            return answered
