"""Starting the real training program for a test, as the supervisor does, and reading what it reports."""

import os
import subprocess
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from training.config import RunConfig
from training.events import Event, Failed, Finished, Metrics, Placed, RankStarted, decode
from worker.launcher import launch

ROOT = Path(__file__).parents[1]
SMALL = {
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
    process: subprocess.Popen[bytes] | None  # None where it ran within this one
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

    def wait_for(self, found: Callable[[Event], bool], seconds: float = 120) -> Event:
        """The first record that is wanted; fails with the log when the process ends without it."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            running = self.process.poll() is None
            for event in self.read():
                if found(event):
                    return event
            assert running, self.log()
            time.sleep(0.02)
        raise AssertionError(f"no such record within {seconds} s\n{self.log()}")

    def finish(self, seconds: float = 180) -> int:
        """Waits for the end; the exit code."""
        code = self.process.wait(timeout=seconds)
        self.read()
        return code

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


def start(run_dir: Path, model: Path, data: Path, **settings: Any) -> Trained:
    """Starts training in `run_dir` (or goes on there) with two CPU threads in all."""
    return _start(run_dir, model, data, ["--module", "training.train"], settings)


def start_recorded(run_dir: Path, model: Path, data: Path, **settings: Any) -> Trained:
    """The same with every batch that a rank trains on written down (recorded_train.py)."""
    return _start(run_dir, model, data, [str(Path(__file__).with_name("recorded_train.py"))], settings)


def _start(run_dir: Path, model: Path, data: Path, program: list[str], settings: dict[str, Any]) -> Trained:
    run_dir.mkdir(exist_ok=True)
    config = RunConfig.model_validate({"model": str(model), "data": str(data)} | SMALL | settings)
    (run_dir / "config.json").write_text(config.model_dump_json())
    command = launch(config, run_dir, ["here/cpu"], cpu_count=2)
    with (run_dir / "output.log").open("ab") as log:
        place = command.argv.index("--module")
        process = subprocess.Popen(
            [*command.argv[:place], *program, *command.argv[place + 2 :]],
            env=os.environ | command.env | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=run_dir,
        )
    offset = (run_dir / "events.jsonl").stat().st_size if (run_dir / "events.jsonl").exists() else 0
    return Trained(run_dir, process, offset)


def train_here(run_dir: Path, model: Path, data: Path, **settings: Any) -> Trained:
    """The training program from first to last line within this process: one rank, and no interpreter to start."""
    from accelerate.state import AcceleratorState

    from training.report import Report
    from training.stopping import StopSignal
    from training.train import train

    run_dir.mkdir(exist_ok=True)
    config = RunConfig.model_validate({"model": str(model), "data": str(data)} | SMALL | settings)
    (run_dir / "config.json").write_text(config.model_dump_json())
    report = Report(run_dir, rank=0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the libraries'; a process of its own prints them into the log
            train(config, run_dir, report, StopSignal())
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
    trained = Trained(run_dir, process=None)
    trained.read()
    return trained
