"""What each open page shows, kept by the server, so that it sends only changes, in order.

Calls of a page's timer and of its user wait for each other, so the server knows what it sent last. After a restart the server
sends the whole page.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import gradio as gr

from app.pages.common.cache import TimedCache

Shown = TypeVar("Shown")
Answer = TypeVar("Answer")


def changes(now: Sequence[Any], before: Sequence[Any] | None) -> list[Any]:
    """The values that differ from `before`, which the page shows; the others are skipped."""
    old = before or (None,) * len(now)
    return [gr.skip() if value == shown else value for value, shown in zip(now, old, strict=True)]


def pace(now: float, before: float | None) -> Any:
    """The page's timer with a new interval in seconds; skipped if it is the one before."""
    return gr.skip() if now == before else gr.Timer(now)


class Viewer(Generic[Shown]):
    """One open page; `shown` is None before the first answer."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.shown: Shown | None = None


class Viewers(Generic[Shown]):
    """The latest open pages of a kind, by Gradio's session hash."""

    def __init__(self, seconds: float = 6 * 3600.0, size: int = 500) -> None:
        self._known: TimedCache[str, Viewer[Shown]] = TimedCache(seconds, size)

    def serve(self, session: str | None, answer: Callable[[Shown | None], tuple[Shown | None, Answer]]) -> Answer:
        """Returns the second value of `answer(shown)` and stores the first as what the page shows. One call at a time.

        Without a session, as in the first drawing of a page, nothing is stored.
        """
        if not session:
            return answer(None)[1]
        viewer = self._known.get(session, Viewer[Shown])
        with viewer.lock:
            viewer.shown, answered = answer(viewer.shown)
            return answered
