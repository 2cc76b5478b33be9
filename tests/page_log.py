"""What happened on a page of the browser, for the report of a test that fails."""

import time
from collections import deque
from typing import Any


class PageLog:
    """Follows a page: its messages, failed requests, and requests without an answer."""

    def __init__(self, page: Any) -> None:
        self._page, self._start = page, time.monotonic()
        self._lines: deque[str] = deque(maxlen=100)
        self._waiting: dict[Any, float] = {}
        self._sent = 0
        page.on("console", lambda message: self._add(f"console {message.type}: {message.text}"))
        page.on("pageerror", lambda error: self._add(f"error: {error}"))
        page.on("crash", lambda: self._add("the page crashed"))
        page.on("framenavigated", lambda frame: self._add(f"at {frame.url}"))
        page.on("request", self._asked)
        page.on("requestfinished", lambda request: self._waiting.pop(request, None))
        page.on("requestfailed", self._failed)
        page.on("response", lambda answer: self._add(f"{answer.status} {answer.url}") if answer.status >= 400 else None)

    def is_waiting(self) -> bool:
        """Whether a handler has yet to answer."""
        return any("/run/predict" in request.url for request in self._waiting)

    def ended(self) -> int | None:
        """How many requests the page has sent, if all have been answered (apart from Gradio's stream, which ends with the page)."""
        return None if any("/heartbeat/" not in request.url for request in self._waiting) else self._sent

    def lines(self) -> list[str]:
        """Messages, failed requests, and answers with an error, with their times; then the requests without an answer."""
        waiting = [
            f"no answer for {time.monotonic() - since:.1f} s: {request.method} {request.url}"
            for request, since in self._waiting.items()
            if "/heartbeat/" not in request.url  # Gradio's stream, which ends with the page
        ]
        return [*self._lines, *waiting]

    def text(self) -> str:
        """The log and what the page shows now."""
        return "\n".join([*self.lines(), f"the page {self._page.url} shows:", self._shown()])

    def _add(self, line: str) -> None:
        self._lines.append(f"{time.monotonic() - self._start:6.1f} s  {line}")

    def _asked(self, request: Any) -> None:
        self._waiting[request] = time.monotonic()
        self._sent += 1

    def _failed(self, request: Any) -> None:
        self._waiting.pop(request, None)
        self._add(f"{request.failure}: {request.url}")

    def _shown(self) -> str:
        try:
            return str(self._page.evaluate("document.body.innerText"))[:3000]
        except Exception as error:
            return f"nothing: {error}"
