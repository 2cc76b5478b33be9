"""A process that has imported the training libraries, and forks the ranks of runs: importing takes longer than a small run.

`python -m benchmarks.forecast.measured_rank` reads from each line of standard input, as JSON, a run's folder and the environment of
each of its ranks. A rank writes its outcome to `outcome-RANK`, and to `peaks-RANK.json` the highest count of live
storages up to the end of each phase, in bytes.
"""

import contextlib
import gc
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from training.config.run_config import RunConfig
from training.ranks.stopping import StopSignal, die_with_parent
from training.reports import live_memory
from training.reports.live_memory import LiveStorages
from training.reports.report import Report

_LIBRARIES = ("torch.distributed.fsdp", "torch.distributed.run", "transformers.trainer", "peft", "deepspeed", "training.train",
              "training.trainer.make_trainer", "training.trainer.prepare", "training.results.finish", "trl.trainer.dpo_trainer",
              "training.trainer.preference_objectives", "training.reports.out_of_memory")  # fmt: skip


class PhasedReport(Report):
    """A report that records the peak at the end of each phase."""

    def __init__(self, run_dir: Path, rank: int) -> None:
        super().__init__(run_dir, rank)
        self._peaks: list[tuple[str, int]] = []
        self._file = run_dir / f"peaks-{rank}.json"

    def enter(self, phase: str) -> None:
        self.end_phase()
        super().enter(phase)

    def end_phase(self) -> None:
        if counting := live_memory.counter():
            self._peaks.append((self.phase, counting.peak))
            self._file.write_text(json.dumps(self._peaks))


def main() -> None:
    die_with_parent()
    for name in _LIBRARIES:
        importlib.import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        request = json.loads(line)
        folder = Path(request["folder"])
        folder.mkdir(exist_ok=True)
        _import_what_runs_imported(folder.parent)
        pids = [_forked(folder, env) for env in request["ranks"]]
        print(json.dumps(pids), flush=True)


def _import_what_runs_imported(home: Path) -> None:
    """Imports what earlier runs imported besides, so that the next ones need not."""
    for file in home.glob("run-*/modules"):
        for name in file.read_text().split():
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        file.unlink()
    gc.freeze()


def _forked(folder: Path, env: dict[str, str]) -> int:
    """The process ID of a rank that runs with this addition to the environment."""
    child = os.fork()
    if child:
        return child
    die_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.update(env)
    log = os.open(folder / "output.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(log, number)
    rank, imported = int(env.get("RANK", "0")), set(sys.modules)
    part = folder / f"outcome-{rank}.part"
    part.write_text(_run(folder, rank))
    if rank == 0:
        (folder / "modules").write_text(" ".join(name for name in sys.modules if name not in imported))
    part.rename(folder / f"outcome-{rank}")
    os._exit(0)


def _run(folder: Path, rank: int) -> str:
    """Runs the rank to its end; `worked`, or its error."""
    from training.train import train

    config = RunConfig.model_validate_json((folder / "config.json").read_text())
    report = PhasedReport(folder, rank)
    counted = live_memory.counted_memory

    @contextlib.contextmanager
    def recorded(budget: int | None = None) -> Iterator[LiveStorages]:
        with counted(budget) as counting:
            try:
                yield counting
            finally:
                report.end_phase()

    live_memory.counted_memory = recorded
    try:
        train(config, folder, report, StopSignal())
        return "worked"
    except Exception as error:
        traceback.print_exc()
        sys.stderr.flush()
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


if __name__ == "__main__":
    main()
