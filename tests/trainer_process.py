"""Starting the real training program for a test, as the supervisor does, and reading what it reports."""

import gc
import importlib
import os
import signal
import subprocess
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import warm
from paths import PROGRAMS
from patience import eventually
from warm import PYTHONPATH

from training.config.run_config import RunConfig
from training.run_folder.events import Event, Failed, Finished, Metrics, Placed, RankStarted, decode
from worker.supervision.launcher import launch

SMALL = {
    "verify_rows": 0,
    "max_steps": 6,
    "micro_batch_size": 4,
    "eval_split": 8,
    "eval_steps": 3,
    "save_steps": 0,
    "logging_steps": 1,
    "learning_rate": 1e-2,
}


@dataclass
class Trained:
    """A training process and its reports so far."""

    run_dir: Path
    process: "subprocess.Popen[bytes] | Forked | None"  # None if it ran in this process
    offset: int = 0
    events: list[Event] = field(default_factory=list)

    def read(self) -> list[Event]:
        """All records up to now."""
        path = self.run_dir / "events.jsonl"
        if path.exists():
            with path.open("rb") as stream:
                stream.seek(self.offset)
                for line in stream:
                    if line.endswith(b"\n"):
                        self.offset += len(line)
                        event = decode(line)
                        assert event is not None, line
                        self.events.append(event)
        return self.events

    def wait_for(self, found: Callable[[Event], bool]) -> Event:
        """The first record that is wanted; fails with the log when the process ends without it."""
        process = self._started()

        def first() -> Event | None:
            running = process.poll() is None
            event = next(filter(found, self.read()), None)
            assert event or running, self.log()
            return event

        event = eventually(first, [process])
        assert event
        return event

    def finish(self) -> int:
        """Waits for the end; the exit code."""
        process = self._started()
        eventually(lambda: process.poll() is not None, [process])
        self.read()
        code = process.poll()
        assert code is not None
        return code

    def _started(self) -> "subprocess.Popen[bytes] | Forked":
        assert self.process, "it was trained in this process"
        return self.process

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def losses(self) -> dict[int, float]:
        return self.series("loss")

    def evaluations(self) -> dict[int, float]:
        return self.series("eval_loss")

    def gradient_norms(self) -> dict[int, float]:
        return self.series("grad_norm")

    def series(self, name: str) -> dict[int, float]:
        points = [event for event in self.of(Metrics) if name in event.values]
        return {event.step: float(event.values[name] or 0) for event in points}

    @property
    def summary(self) -> dict[str, Any]:
        return dict(self.of(Finished)[-1].summary)

    @property
    def failure(self) -> Failed:
        failed: Failed = self.of(Failed)[0]
        return failed

    def shards(self) -> dict[int, Placed]:
        return {event.rank: event for event in self.of(Placed)}

    def pids(self) -> list[int]:
        return [event.pid for event in self.of(RankStarted)]

    def log(self) -> str:
        return (self.run_dir / "output.log").read_text(errors="replace")[-6000:]


def start(run_dir: Path, model: Path, data: Path | str, **settings: Any) -> Trained:
    """Starts training in `run_dir` (or goes on there): the launcher and the ranks are forks of one warm process."""
    return _start(run_dir, model, data, ["--module", "training.train"], settings)


def start_recorded(run_dir: Path, model: Path, data: Path | str, **settings: Any) -> Trained:
    """The same with every batch that a rank trains on written down (programs/recorded_train.py)."""
    return _start(run_dir, model, data, [str(PROGRAMS / "recorded_train.py")], settings)


def start_with_shuffled_gather(run_dir: Path, model: Path, data: Path | str, **settings: Any) -> Trained:
    """The same with a fault in gathering the shards of the result (programs/shuffled_gather_train.py)."""
    return _start(run_dir, model, data, [str(PROGRAMS / "shuffled_gather_train.py")], settings)


def start_with_slow_rank(run_dir: Path, model: Path, data: Path | str, **settings: Any) -> Trained:
    """The same with a second rank that is slow and then stops (programs/slow_rank_train.py)."""
    return _start(run_dir, model, data, [str(PROGRAMS / "slow_rank_train.py")], settings)


def start_with_measured_loading(run_dir: Path, model: Path, data: Path | str, **settings: Any) -> Trained:
    """The same; each rank writes what memory the loaded model takes (programs/measured_loading_train.py)."""
    return _start(run_dir, model, data, [str(PROGRAMS / "measured_loading_train.py")], settings)


def start_with_slow_save(run_dir: Path, model: Path, data: Path | str, **settings: Any) -> Trained:
    """The same; rank 0 writes the result for longer than a collective may last (programs/slow_save_train.py)."""
    return _start(run_dir, model, data, [str(PROGRAMS / "slow_save_train.py")], settings)


def start_held(run_dir: Path, model: Path, data: Path | str, hold: int, **settings: Any) -> Trained:
    """The same; it waits after step `hold` until the file `go` is in the run's folder (programs/held_train.py)."""
    run_dir.mkdir(exist_ok=True)
    (run_dir / "hold").write_text(str(hold))
    return _start(run_dir, model, data, [str(PROGRAMS / "held_train.py")], settings)


def start_diverging(run_dir: Path, model: Path, data: Path | str, first: int, **settings: Any) -> Trained:
    """The same; from step `first` on the losses of rank 1 are NaN (programs/diverging_train.py)."""
    run_dir.mkdir(exist_ok=True)
    (run_dir / "nan").write_text(str(first))
    return _start(run_dir, model, data, [str(PROGRAMS / "diverging_train.py")], settings)


def start_without_collection(run_dir: Path, model: Path, data: Path | str, **settings: Any) -> Trained:
    """The same without automatic garbage collection, which frees reference cycles by chance (programs/uncollected_train.py)."""
    return _start(run_dir, model, data, [str(PROGRAMS / "uncollected_train.py")], settings)


def start_cold(run_dir: Path, model: Path, data: Path | str, **settings: Any) -> Trained:
    """The same with interpreters of its own, as the supervisor starts them."""
    argv, env = _command(run_dir, model, data, ["--module", "training.train"], settings)
    with (run_dir / "output.log").open("ab") as log:
        process = subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=run_dir
        )
    return Trained(run_dir, process, _reported(run_dir))


def _start(run_dir: Path, model: Path, data: Path | str, program: list[str], settings: dict[str, Any]) -> Trained:
    argv, env = _command(run_dir, model, data, program, settings)
    exit_code = warm.folder() / f"exit-code-{os.getpid()}-{time.monotonic_ns()}"
    request = {"arguments": argv[2:], "env": env, "folder": str(run_dir), "log": str(run_dir / "output.log")}
    request |= {"ranks": settings.get("num_processes", 1), "exit_code": str(exit_code)}
    reported = _reported(run_dir)
    return Trained(run_dir, Forked(warm.forked(request), exit_code), reported)


def _command(
    run_dir: Path, model: Path, data: Path | str, program: list[str], settings: dict[str, Any]
) -> tuple[list[str], dict[str, str]]:
    """The arguments and the environment of a launcher, with one CPU thread a rank."""
    run_dir.mkdir(exist_ok=True)
    config = RunConfig.model_validate({"model": str(model), "data": str(data)} | SMALL | settings)
    (run_dir / "config.json").write_text(config.model_dump_json())
    command = launch(config, run_dir, ["here/cpu"])
    place = command.argv.index("--module")
    argv = [*command.argv[:place], *program, *command.argv[place + 2 :]]
    return argv, os.environ | command.env | {"PYTHONPATH": PYTHONPATH}


def _reported(run_dir: Path) -> int:
    """The bytes of the reports up to now."""
    path = run_dir / "events.jsonl"
    return path.stat().st_size if path.exists() else 0


@dataclass
class Forked:
    """A launcher, which the warm launcher has forked."""

    pid: int
    exit_code: Path

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        if self.exit_code.exists():
            return int(self.exit_code.read_text())
        return None if psutil.pid_exists(self.pid) or self.exit_code.exists() else -signal.SIGKILL


def _freeze() -> None:
    """Exempts what the tests have made by now from garbage collection: at the end of a training, accelerate collects all garbage,
    which takes longer than a tiny training if it looks through every library."""
    for name in ("transformers.trainer", "peft"):
        importlib.import_module(name)
    gc.freeze()


def train_here(run_dir: Path, model: Path, data: Path | str, **settings: Any) -> Trained:
    """The training program from first to last line within this process: one rank, and no interpreter to start."""
    from accelerate.state import AcceleratorState

    from training.ranks.stopping import StopSignal
    from training.reports.report import Report
    from training.train import train

    run_dir.mkdir(exist_ok=True)
    config = RunConfig.model_validate({"model": str(model), "data": str(data)} | SMALL | settings)
    (run_dir / "config.json").write_text(config.model_dump_json())
    report = Report(run_dir, rank=0)
    _freeze()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of the libraries; a separate process prints them into the log
            train(config, run_dir, report, StopSignal())
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
    trained = Trained(run_dir, process=None)
    trained.read()
    return trained
