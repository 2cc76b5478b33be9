"""The jobs of a serving process: requests with their prompts, which clients have answered in turn."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from training.clients import ACCOUNT_ENDS
from training.errors import is_out_of_memory
from training.serving.forms import Request, RequestError
from training.serving.loaded import Served

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class Token:
    """A generated token: the text that it completes, and, if wanted, its log probability and the most likely alternatives.

    `offset` is the number of characters of the answer before it; a part of a character has that of the character.
    """

    id: int
    text: str
    logprob: float | None = None
    alternatives: tuple[tuple[int, float], ...] = ()
    offset: int = 0


@dataclass(frozen=True)
class End:
    """The end of an answer: "stop" or "length", and text that was held back until now."""

    reason: str
    text: str = ""


Emitted = Token | End | RequestError


@dataclass
class Job:
    """A request with its prompt: `emit` gets at most `max_tokens` tokens and the end, in the thread that generates."""

    served: Served
    prompt: list[int]
    request: Request
    max_tokens: int
    emit: Callable[[Emitted], None]
    index: int = 0
    """The place of its prompt among those of the request."""
    client: str = ""
    """Who sent the request, for turns: an account, ACCOUNT_ENDS, and a client of the account."""
    added: float = field(default_factory=time.monotonic)
    waited: float = 0.0
    """Seconds until it began."""
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def ends(self) -> tuple[int, ...]:
        return () if self.request.ignore_eos else self.served.ends


class Moved(RequestError):  # noqa: N818
    """The models are about to be replaced by others: the request can be sent again, to the process that then serves its model."""

    def __init__(self, name: str) -> None:
        fix = "Send the request again."
        super().__init__(503, "model", name, "makes room for other models, which wait for their turn.", fix)


class Generator:
    """The threads that generate, each one answer at a time by `answer`: of each account in turn, and of its clients in turn, the
    job that has waited longest.

    `pending` counts the jobs that have not ended, `answered` those that have.
    """

    def __init__(self, answer: Callable[[Job], None], threads: int = 1) -> None:
        self._answer = answer
        self._calls: deque[Callable[[], object]] = deque()
        # By account and then by its client, whose turn is next first.
        self._waiting: dict[str, dict[str, deque[Job]]] = {}
        self._changed = threading.Condition()
        self._drains = False
        self.pending = self.answered = 0
        for _ in range(threads):
            threading.Thread(target=self._work, name="generator", daemon=True).start()

    def add(self, job: Job) -> None:
        """Queues a job. Raises Moved if it drains."""
        with self._changed:
            if self._drains:
                raise Moved(job.served.name)
            self.pending += 1
            account = job.client.partition(ACCOUNT_ENDS)[0]
            self._waiting.setdefault(account, {}).setdefault(job.client, deque()).append(job)
            self._changed.notify()

    def call(self, work: Callable[[], T]) -> "Future[T]":
        """Runs `work` between two answers, before those that wait."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        with self._changed:
            self._calls.append(run)
            self._changed.notify()
        return future

    def drain(self) -> None:
        """Takes no more jobs. Of those that wait, the next request of each account is still answered: it has waited for its turn;
        the others fail with Moved."""
        with self._changed:
            self._drains = True
            for account, clients in self._waiting.items():
                waiting = [job for jobs in clients.values() for job in jobs]
                kept = deque(job for job in waiting if job.request is waiting[0].request)
                moved = [job for job in waiting if job.request is not waiting[0].request]
                self._waiting[account] = {waiting[0].client: kept}
                self.pending -= len(moved)
                for job in moved:
                    job.emit(Moved(job.served.name))

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._calls or self._waiting)
                job = None if self._calls else self._next()
                work = self._calls.popleft() if job is None else None
            if job is None:
                work and work()
                continue
            job.waited = time.monotonic() - job.added
            try:
                if not job.cancelled.is_set():
                    self._answer(job)
            except RequestError as error:
                job.emit(error)
            except Exception as error:  # the thread must go on, and the client gets the reason
                log.exception("a request failed")
                job.emit(_failure(error))
            finally:
                with self._changed:
                    self.pending -= 1
                    self.answered += 1

    def _next(self) -> Job:
        """The next job. The account's others wait until every other account had a turn, and its client's until every other client
        of the account had one."""
        account, clients = next(iter(self._waiting.items()))
        client, jobs = next(iter(clients.items()))
        job = jobs.popleft()
        del self._waiting[account], clients[client]
        if jobs:
            clients[client] = jobs
        if clients:
            self._waiting[account] = clients
        return job


def _failure(error: Exception) -> RequestError:
    if is_out_of_memory(error):
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return RequestError(503, "prompt", None, "does not fit in GPU memory.", "Shorten it, or lower max_tokens.")
    message = f"cannot be generated: {type(error).__name__}: {error}"
    return RequestError(500, "answer", None, message, "The log of the serving process has the details.")
