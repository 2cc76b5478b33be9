"""Checking a file that somebody gave us, in a process of its own with limits: it may be made to harm its reader."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from training.failure import DataError
from worker.settings import ROOT

MEMORY_BYTES = 2 * 2**30  # of the reading process, besides the file's size
SECONDS = 10  # its processor time, besides what reading the file takes
BYTES_PER_SECOND = 2 * 2**20
READER = "training.rows"
LARGEST_FINDING = 4 * 2**20  # bytes


def check_file(path: Path, name: str) -> dict[str, Any]:
    """What `training.rows` finds in the file, read in a process with limits.

    Raises:
        DataError: the file cannot train, or its reader did not survive it.
    """
    length = path.stat().st_size
    seconds = SECONDS + length // BYTES_PER_SECOND
    limits = [str(MEMORY_BYTES + length), str(seconds)]
    command = [sys.executable, "-m", "worker.limited", *limits, READER, str(path), "--name", name]
    try:
        # No more of the environment than Python needs: the reader sees no token and no address.
        done = subprocess.run(  # a reader that fails is looked at below
            command, capture_output=True, stdin=subprocess.DEVNULL, env=environment(), timeout=3 * seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise _too_slow(name, seconds) from None
    if done.returncode or not done.stdout or len(done.stdout) > LARGEST_FINDING:
        raise _crashed(name, seconds, done)
    finding: dict[str, Any] = json.loads(done.stdout)
    if not finding.pop("ok"):
        problem = finding["problem"]
        place = {key: problem[key] for key in ("file", "line", "field")}
        raise DataError(problem["message"], problem["fix"], **place)
    return finding


def environment() -> dict[str, str]:
    names = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    python = {"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", "PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return kept | python | {"OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}


def _crashed(name: str, seconds: int, done: subprocess.CompletedProcess[bytes]) -> DataError:
    last_line = (done.stderr.decode(errors="replace").strip().splitlines() or [""])[-1]
    if len(done.stdout) > LARGEST_FINDING:
        return DataError("has far too many columns.", "Each row holds a few texts, or a list of messages.", file=name)
    if -done.returncode == signal.SIGXCPU:
        return _too_slow(name, seconds)
    if -done.returncode == signal.SIGKILL or "MemoryError" in last_line:
        return DataError(
            "needs too much memory to read.", "Save it as JSONL, which is read a row at a time.", file=name
        )
    if done.returncode < 0:
        message = (
            f"made its reader crash ({signal.Signals(-done.returncode).name}): it is damaged, or nested too deeply."
        )
        return DataError(message, "Write the file again with one flat object a row.", file=name)
    return DataError(f"cannot be checked ({last_line}).", "Save it again as JSONL in UTF-8.", file=name)


def _too_slow(name: str, seconds: int) -> DataError:
    return DataError(f"takes more than {seconds} s to read.", "Save it as JSONL with one flat object a row.", file=name)
