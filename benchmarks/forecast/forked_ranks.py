"""Runs configurations in ranks that are forked from one process (benchmarks/forecast/measured_rank.py)."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

from benchmarks.matrix.command import ROOT, Runs, _free_port, _place
from training.config.run_config import RunConfig
from worker.supervision.launcher import launch

SECONDS = 300  # time limit of a run


class ForkedRanks:
    """The process that forks ranks; use it as a context."""

    def __init__(self, log: Path) -> None:
        self._log = log.open("wb")
        env = os.environ | launch(RunConfig(model="any", data="any"), Path(), ["here/cpu"]).env
        env |= {
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "HF_HUB_OFFLINE": "1",
        }
        command = [sys.executable, "-m", "benchmarks.forecast.measured_rank"]
        self._process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self._process.communicate()
        self._log.close()

    def run(self, case: Runs, folder: Path) -> tuple[str, str]:
        """Runs a configuration in `folder`. Returns `worked`, or `crashed` and the reason."""
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(RunConfig.model_validate(case.config).model_dump_json())
        port = {"MASTER_PORT": str(_free_port())}
        request = {"folder": str(folder), "ranks": [_place(case, rank) | port for rank in range(case.ranks)]}
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        pids = json.loads(self._process.stdout.readline())
        try:
            return self._outcome([folder / f"outcome-{rank}" for rank in range(case.ranks)], pids)
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _outcome(self, files: list[Path], pids: list[int]) -> tuple[str, str]:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            ended = [not Path(f"/proc/{pid}").exists() for pid in pids]
            outcomes = [path.read_text() for path in files if path.exists()]
            if failed := next((outcome for outcome in outcomes if outcome != "worked"), None):
                return "crashed", failed
            if len(outcomes) == len(files):
                return "worked", ""
            if any(gone and not path.exists() for gone, path in zip(ended, files, strict=True)):
                return "crashed", "a rank ended"
            time.sleep(0.05)
        return "crashed", f"hung for {SECONDS} s"
