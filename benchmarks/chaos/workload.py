"""What users do during a session of benchmarks.chaos: runs of every kind, and what is made of their results."""

import itertools
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from sqlmodel import col, select

from benchmarks.chaos.installation import Installation
from benchmarks.chaos.kinds import DISTILL, HUB_OWNER, KINDS, LIGHT, ONE_RANK, STARTER, TWO_RANKS, kind_of
from worker.store import database
from worker.store.tables import Build, Evaluation, Run, ServedModel, ServedState, Status
from worker.store.tables.queued import QueuedWork

DATA = STARTER / "heldout.jsonl"
FORMS = ("gguf", "merged", "gguf-adapter", "checkpoint")
ANSWER_SECONDS = 240.0
"""How long a request to a served model may take: more than any freeze."""
_UNENDED = (Status.QUEUED, Status.RUNNING)
_LOOK_SECONDS = 0.5
_REQUESTS = 4  # of a model, before another one is served
_PROMPT = "Write this order as JSON: We need nine gray toys. Deliver to Seoul on Monday."


@dataclass
class Answers:
    """What served models answered: HTTP statuses, the first text of each model, and what is wrong."""

    statuses: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    different: list[str] = field(default_factory=list)
    hanging: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """A well-formed request is refused for nothing that it has: 4xx, with its text."""


class Workload:
    """Submits runs through the web server so that each worker has one, most on two ranks, and uses what they result in.

    Two threads do this until `stop`. `accepted` are the ids that the web server returned.
    """

    def __init__(self, installation: Installation, seed: int, *, real: bool) -> None:
        self._installation, self._real = installation, real
        self._chance = random.Random(seed)
        self._pairs, self._singles = (
            itertools.cycle(TWO_RANKS),
            itertools.cycle([kind for one in ONE_RANK for kind in (LIGHT, one)]),
        )
        self._forms, self._turns = itertools.cycle(FORMS), itertools.cycle(("evaluation", "build", "build"))
        self.accepted: set[str] = set()
        self.answers = Answers()
        self._submitted, self._data, self.teacher = 0, str(DATA), ""
        self._used: set[str] = set()
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._feed, name="runs", daemon=True)]
        self._threads += [threading.Thread(target=self._ask, name="requests", daemon=True)] if real else []

    def start(self) -> None:
        """Starts the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Begins nothing more."""
        self._stopping.set()

    @property
    def busy(self) -> bool:
        """Whether a request is still unanswered."""
        return any(thread.is_alive() for thread in self._threads)

    def submit(self, kind: str) -> str:
        """Submits a run of a kind. Returns its id, or "" if the web server does not answer."""
        self._submitted += 1
        number = self._submitted
        config: dict[str, Any] = {"name": f"{kind}-{number}", "model": str(STARTER), "data": self._data}
        config |= self._light(number) if kind == LIGHT else KINDS[kind].settings
        if config.get("push_to_hub"):
            config["push_to_hub"] = f"{HUB_OWNER}/{kind}-{number}"
        if kind == DISTILL:
            config["teacher"] = self.teacher
        run_id = self._installation.submit(config)
        if run_id:
            self.accepted.add(run_id)
            with database.read() as session:  # the stored data set, so that it is not imported again
                self._data = session.get_one(Run, run_id).config["data"]
        return run_id or ""

    def _light(self, number: int) -> dict[str, Any]:
        chance = self._chance
        longest = chance.choice((200, 1000))  # 1,000 take three leases
        steps = {"max_steps": chance.randint(40, longest), "save_steps": chance.randint(5, 30)}
        ranks = {"num_processes": 2, "strategy": "ddp"} if number % 2 else {}
        clustered = self._installation.cluster is not None and number % 4 == 1
        return {"seed": number} | steps | ranks | ({"num_machines": 2} if clustered else {})

    def _feed(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            self._top_up()
            if self._real:
                self._use_results()

    def _top_up(self) -> None:
        """Submits a run if a worker has none: on two ranks, unless all but one are."""
        under_way = [kind_of(name) for name in unended_runs().values()]
        pairs = sum(kind in TWO_RANKS for kind in under_way)
        if self._real and pairs < max(1, len(self._installation.workers) - 1):
            self.submit(next(self._pairs))
        elif len(under_way) <= len(self._installation.workers):
            self.submit(next(self._singles) if self._real else LIGHT)

    def _use_results(self) -> None:
        """Evaluates a new result, or builds a form of it, one after another."""
        if unended_work():
            return
        for run in self._finished():
            if run.id not in self._used:
                self._used.add(run.id)
                path, body = f"builds/{next(self._forms)}", dict[str, Any]()
                if next(self._turns) == "evaluation":
                    path, body = "evaluations", {"data": self._data, "rows": 6, "max_new_tokens": 12}
                self._installation.ask("POST", f"/api/runs/{run.id}/{path}", body)
                return

    def _finished(self) -> list[Run]:
        query = select(Run).where(Run.status == Status.FINISHED, col(Run.name).not_like(f"{LIGHT}-%"))
        with database.read() as session:
            return list(session.exec(query.order_by(col(Run.id).desc())))

    def _ask(self) -> None:
        """Sends requests to the newest result, and to another one after some answers."""
        while not self._stopping.wait(_LOOK_SECONDS):
            if finished := self._finished():
                self.request(self._chance.choice(finished[:5]).id, _REQUESTS)

    def request(self, run_id: str, times: int = 1) -> bool:
        """Sends a model the same prompt several times. Returns whether the last one was answered."""
        answered = False
        body = {"model": run_id, "max_tokens": 12, "temperature": 0, "messages": [{"role": "user", "content": _PROMPT}]}
        for _ in range(times):
            began = time.monotonic()
            status, answer = self._installation.ask("POST", "/v1/chat/completions", body, ANSWER_SECONDS)
            if answered := status == 200:
                text = str(answer["choices"][0]["message"]["content"])
                if self.answers.first.setdefault(run_id, text) != text:
                    self.answers.different.append(f"{run_id}: its served model answers {text!r} after another answer")
            elif time.monotonic() - began > 0.9 * ANSWER_SECONDS:
                self.answers.hanging.append(f"{run_id}: no answer of its served model in {ANSWER_SECONDS:g} s")
            elif 400 <= status < 500:
                self.answers.refused.append(f"{run_id}: a request to its served model is refused: {status} {answer}")
            self.answers.statuses[str(status or "no answer")] += 1
            if self._stopping.wait(_LOOK_SECONDS):
                break
        return answered


def unended_runs() -> dict[str, str]:
    """The names of the runs that are queued or running, by id."""
    with database.read() as session:
        return dict(session.exec(select(Run.id, Run.name).where(col(Run.status).in_(_UNENDED))).all())


def unended_work() -> list[QueuedWork]:
    """The evaluations and builds that are queued or running."""
    with database.read() as session:
        return [
            row
            for table in (Evaluation, Build)
            for row in session.exec(select(table).where(col(table.status).in_(_UNENDED)))
        ]


def serving() -> list[ServedModel]:
    """The served models that have not ended."""
    with database.read() as session:
        return list(session.exec(select(ServedModel).where(ServedModel.state != ServedState.ENDED)))
