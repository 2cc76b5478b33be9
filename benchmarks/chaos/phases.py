"""The phases of a training program: those that its code can enter, and where the active runs are, from their records."""

import ast
import importlib
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sqlmodel import col, select

from training.run_folder.events import Finished, Metrics, PhaseStarted, RankStarted, Resumed, decode
from training.run_folder.paths import events_file
from training.run_folder.stages import STAGES
from worker.settings import ROOT
from worker.store import database
from worker.store.tables import Run, Status

CLOSING = "closing"
"""After the program has reported its end, until its supervisor has stored it."""
END = "after the last step"
_ENTERS = re.compile(r"\b(enter|during)\(")
_TRAINING = ("training", "saving")
_SUPPOSED_SECONDS = 2.0  # of a phase that was not seen to its end yet
_SHARE = 0.7  # of a phase's median time: later, most have left it


def declared(package: Path = ROOT / "training") -> frozenset[str]:
    """The phases that a program in `package` enters: the arguments of `enter` and `during` of its reports, and the stages after
    the training, which it enters one after another."""
    entered = (phase for file in package.rglob("*.py") for phase in _entered(file.read_text(encoding="utf-8")))
    return frozenset(entered) | ({stage.phase for stage in STAGES} if package == ROOT / "training" else set())


def _entered(text: str) -> Iterator[str]:
    """The literals, and the constants of modules that the code imports, that it enters; a variable has its value elsewhere."""
    if not _ENTERS.search(text):  # most files, which need not be parsed
        return
    nodes = list(ast.walk(ast.parse(text)))
    for argument in (node.args[0] for node in nodes if isinstance(node, ast.Call) and _is_entering(node)):
        if isinstance(argument, ast.Constant):
            yield str(argument.value)
        elif isinstance(argument, ast.Attribute) and argument.attr.isupper():
            owner = ast.unparse(argument.value)
            imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
            found = next(node for node in imports if owner in {name.name for name in node.names})
            yield str(getattr(importlib.import_module(f"{found.module}.{owner}"), argument.attr))


def _is_entering(call: ast.Call) -> bool:
    return len(call.args) == 1 and bool(_ENTERS.search(ast.unparse(call.func) + "("))


@dataclass
class Watch:
    """Where an active run is, from the records of its current attempt. `ranks` are process ids; times are monotonic."""

    run_id: str
    name: str
    last_step: int
    path: Path
    ranks: dict[int, int] = field(default_factory=dict)
    phase: str = "starting"
    since: float = 0.0
    ended_at: float | None = None  # when the last step was recorded
    world_size: int = 1
    attempt: int = 0
    _offset: int = 0
    _step: int = 0
    _trains: bool = False
    _partial: bytes = b""

    @property
    def kind(self) -> str:
        """The kind of run, as benchmarks/chaos/workload.py names it."""
        return self.name.rpartition("-")[0]

    def read(self, durations: "Durations") -> None:
        """Reads new records."""
        try:
            with self.path.open("rb") as stream:
                stream.seek(self._offset)
                new = stream.read()
        except FileNotFoundError:
            return
        self._offset += len(new)
        *lines, self._partial = (self._partial + new).split(b"\n")
        for line in lines:
            self._take(line, durations)

    def _take(self, line: bytes, durations: "Durations") -> None:
        record, now = decode(line), time.monotonic()
        if isinstance(record, RankStarted):
            if record.rank in self.ranks or not self.ranks:
                self.ranks, self._step, self._trains, self.ended_at = {}, 0, False, None
                self.phase, self.since = "starting", now
            self.ranks[record.rank] = record.pid
        elif isinstance(record, PhaseStarted | Finished):
            durations.add(self.phase, now - self.since)
            self.phase = record.phase if isinstance(record, PhaseStarted) else CLOSING
            self.since = now
        elif isinstance(record, Resumed) or (isinstance(record, Metrics) and "loss" in record.values):
            self._step = record.step
        # A run that resumes from its last step has it behind it only once it has loaded its checkpoint.
        self._trains = self._trains or self.phase in _TRAINING
        if self._step >= self.last_step and self._trains and self.ended_at is None:
            self.ended_at = now

    def elapsed(self, moment: str) -> float | None:
        """Seconds since the run is at the moment (END or a phase); None if it is not."""
        if moment == END:
            return None if self.ended_at is None else time.monotonic() - self.ended_at
        return time.monotonic() - self.since if self.phase == moment else None


class Durations:
    """How long phases took, to strike inside of them."""

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = defaultdict(list)

    def add(self, moment: str, seconds: float) -> None:
        self._seconds[moment].append(seconds)

    def within(self, moment: str, share: float) -> float:
        """The seconds from the start of a phase to a point of it; `share` is from 0 to 1."""
        known = self._seconds.get(moment)
        return _SHARE * share * (statistics.median(known) if known else _SUPPOSED_SECONDS)

    @property
    def seen(self) -> Iterable[str]:
        """The phases that were seen to their end."""
        return self._seconds.keys() - {END}


class Watches:
    """The active runs."""

    def __init__(self, runs_dir: Path) -> None:
        self._runs_dir, self._of = runs_dir, dict[str, Watch]()
        self.durations = Durations()

    def refresh(self) -> None:
        """Asks the database which runs are active."""
        query = select(Run).where(Run.status == Status.RUNNING).order_by(col(Run.id))
        with database.read() as session:
            active = {run.id: run for run in session.exec(query)}
        for gone in self._of.keys() - active.keys():
            watch = self._of.pop(gone)
            if watch.phase == CLOSING and watch.ended_at is not None:
                self.durations.add(CLOSING, time.monotonic() - watch.since)
                self.durations.add(END, time.monotonic() - watch.ended_at)
        for run_id in active.keys() - self._of.keys():
            self._of[run_id] = self._watched(active[run_id])
        for run_id, watch in self._of.items():
            watch.attempt = active[run_id].attempt

    def read(self) -> list[Watch]:
        """The active runs, where they are now; the oldest first."""
        for watch in self._of.values():
            watch.read(self.durations)
        return [self._of[run_id] for run_id in sorted(self._of)]

    def _watched(self, run: Run) -> Watch:
        config = run.config
        path = events_file(self._runs_dir / run.id)
        watch = Watch(run.id, run.name, int(config["max_steps"] or 1), path, since=time.monotonic())
        watch.world_size = int(config["num_processes"])
        watch.read(Durations())  # what an earlier attempt did says nothing about durations
        return watch
