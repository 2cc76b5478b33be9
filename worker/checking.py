"""Reading a file that somebody gave us in a process of its own with limits: it may be made to harm its reader."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from training.failure import DataError
from training.inspection import Inspection
from training.issues import Issue
from training.joining import REFUSED
from worker.settings import ROOT

MEMORY_BYTES = 2 * 2**30  # of the reading process, besides the file's size
SECONDS = 10  # its processor time, besides what reading the file takes
BYTES_PER_SECOND = 2 * 2**20
READER = "training.inspection"
JOINER = "training.joining"
LARGEST_FINDING = 4 * 2**20  # bytes


def check_file(path: Path, name: str, columns: str | None = None, file_format: str | None = None) -> Inspection:
    """What `training.inspection` finds in the file, read in a process with limits; `columns` is a mapping.

    The file's format is told by its content and name, unless it is given.

    A reader that does not survive the file is a problem of the file like any other.
    """
    try:
        length = path.stat().st_size
    except OSError as error:
        return _failed(name, DataError(f"cannot be read: {error.strerror}.", "Check the path and its permissions."))
    seconds = SECONDS + length // BYTES_PER_SECOND
    options = {"--name": name, "--columns": columns, "--file-format": file_format}
    arguments = [str(path), *(f"{option}={value}" for option, value in options.items() if value)]
    command = _command(MEMORY_BYTES + length, seconds, READER, arguments)
    try:
        done = subprocess.run(  # a reader that fails is looked at below
            command, capture_output=True, stdin=subprocess.DEVNULL, env=environment(), timeout=3 * seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return _failed(name, _too_slow(seconds))
    if done.returncode or not done.stdout or len(done.stdout) > LARGEST_FINDING:
        return _failed(name, _crash(seconds, done.returncode, len(done.stdout), done.stderr))
    return Inspection.from_json(json.loads(done.stdout))


@contextmanager
def joined(paths: Sequence[Path], names: Sequence[str]) -> Iterator[IO[bytes]]:
    """The rows of several checked files as JSONL, written by a process with limits while it is read here.

    Raises:
        DataError: at the end, where that process failed.
    """
    length = sum(path.stat().st_size for path in paths)
    seconds = SECONDS + length // BYTES_PER_SECOND
    pairs = [part for path, name in zip(paths, names, strict=True) for part in (str(path), name)]
    command = _command(MEMORY_BYTES + length, seconds, JOINER, pairs)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment()
    )
    with process:
        assert process.stdout and process.stderr
        try:
            yield process.stdout
        except BaseException:
            process.kill()
            raise
        complaint = process.stderr.read()
    if process.returncode == REFUSED:
        issue = Issue(**json.loads(complaint))
        raise DataError(issue.message, issue.fix, file=issue.file, line=issue.line, field=issue.field)
    if process.returncode:
        error = _crash(seconds, process.returncode, 0, complaint)
        raise DataError(error.message, error.fix, file=" + ".join(names))


def environment() -> dict[str, str]:
    """No more of the environment than Python needs: the reader sees no token and no address."""
    names = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    python = {"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", "PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return kept | python | {"OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}


def _command(memory: int, seconds: int, module: str, arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "worker.limited", str(memory), str(seconds), module, *arguments]


def _failed(name: str, error: DataError) -> Inspection:
    return Inspection(problems=[Issue.of(error, name)])


def _crash(seconds: int, code: int, length: int, complaint: bytes) -> DataError:
    last_line = (complaint.decode(errors="replace").strip().splitlines() or [""])[-1]
    if length > LARGEST_FINDING:
        return DataError("has far too many columns.", "Each row holds a few texts, or a list of messages.")
    if -code == signal.SIGXCPU:
        return _too_slow(seconds)
    if -code == signal.SIGKILL or "MemoryError" in last_line or "bad_alloc" in last_line:
        return DataError("needs too much memory to read.", "Save it as JSONL, which is read a row at a time.")
    if code < 0:
        message = f"made its reader crash ({signal.Signals(-code).name}): it is damaged, or nested too deeply."
        return DataError(message, "Write the file again with one flat object a row.")
    return DataError(f"cannot be checked ({last_line}).", "Save it again as JSONL in UTF-8.")


def _too_slow(seconds: int) -> DataError:
    return DataError(f"takes more than {seconds} s to read.", "Save it as JSONL with one flat object a row.")
