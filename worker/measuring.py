"""Tokenizing a data set in the background: started once by whoever asks first, found again by everyone, ended by nobody's leaving.

A process holds the lock of the store it makes and writes how far it is; its start, its end and its failure are read from the
data folder alone, so that a web server that restarts, or the command line, sees what another one began.
"""

import fcntl
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from training import token_store
from training.failure import DataError
from training.tokenizing import failure_file, read_progress
from worker import token_cache
from worker.checking import environment
from worker.settings import ROOT, get_settings
from worker.token_report import Token, rendered_row, report
from worker.units import size

__all__ = ["Measurement", "Token", "folder_of", "measure", "rendered_row", "report", "state", "wait"]

log = logging.getLogger(__name__)

TOKENIZER = "training.tokenizing"
MEMORY_BYTES = 4 * 2**30  # of the tokenizing process: what it allocates, not what it maps
SECONDS = 300  # its processor time, besides what the file takes
BYTES_PER_SECOND = 20_000
STORE_FACTOR = (
    8  # a store is that many times the size of its file at most, mostly: four bytes a token, and what is noted
)
SPARE_BYTES = 64 * 2**20
_LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class Measurement:
    """Where the tokenizing of a set stands. `total` is 0 where it is not known; `problem` has file, line, field, message, fix."""

    status: Literal["absent", "running", "done", "failed"]
    done: int = 0
    total: int = 0
    problem: dict[str, Any] | None = None
    store: Path | None = None


def folder_of(
    sha256: str,
    model: str,
    columns: str | None = None,
    revision: str | None = None,
    template_kwargs: str | None = None,
) -> Path:
    """Where the tokens of that data are kept for that tokenizer and mapping."""
    return get_settings().tokens_dir / token_store.store_key(
        sha256, model, columns, revision, template_kwargs=template_kwargs
    )


def state(
    sha256: str,
    model: str,
    columns: str | None = None,
    *,
    revision: str | None = None,
    template_kwargs: str | None = None,
) -> Measurement:
    """Where it stands; nothing is started."""
    return _state(folder_of(sha256, model, columns, revision, template_kwargs))


def measure(
    path: Path,
    sha256: str,
    model: str,
    columns: str | None = None,
    *,
    revision: str | None = None,
    rows: int = 0,
    name: str = "",
    retry: bool = False,
) -> Measurement:
    """Starts the tokenizing of a file, or finds it under way, done, or failed; what failed is tried again with `retry` only.

    `rows` is how many there are, for the progress; `name` is the file's in messages.
    """
    folder = folder_of(sha256, model, columns, revision)
    found = _state(folder)
    if found.status in ("done", "running") or (found.status == "failed" and not retry):
        return found
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    arguments = ["--model", model, "--into", str(folder), "--rows", str(rows), "--name", name or path.name]
    arguments += [
        part for flag, text in (("--columns", columns), ("--revision", revision)) if text for part in (flag, text)
    ]
    return _start(path, folder, [str(path), *arguments])


def wait(folder_state: Callable[[], Measurement], told: Callable[[Measurement], None] | None = None) -> Path:
    """Waits for a measurement that `folder_state` looks at; `told` hears of every look. The store's folder.

    Raises:
        DataError: it failed, or was ended.
    """
    looks_left = 5  # a process that was killed is said to have failed a moment later
    while (found := folder_state()).status in ("running", "absent") and looks_left:
        looks_left = 5 if found.status == "running" else looks_left - 1
        if told:
            told(found)
        time.sleep(_LOOK_SECONDS)
    if found.store is None:
        problem = found.problem or {"message": "was not tokenized.", "fix": "Try again."}
        place = {key: problem[key] for key in ("file", "line", "field") if key in problem}
        raise DataError(problem["message"], problem["fix"], **place)
    return found.store


def _state(folder: Path) -> Measurement:
    if (folder / token_store.FACTS).is_file():
        return Measurement("done", store=folder)
    if token_store.is_being_made(folder):
        return Measurement("running", *read_progress(folder))
    if (folder / token_store.FACTS).is_file():  # finished between the two looks
        return Measurement("done", store=folder)
    if problem := _json(failure_file(folder)):
        return Measurement("failed", problem=problem)
    return Measurement("absent")


def _start(path: Path, folder: Path, arguments: list[str]) -> Measurement:
    """Starts the process, which inherits the lock, so that nobody sees the store unheld between here and there."""
    lock = os.open(token_store.lock_file(folder), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return _state(folder)
        if (folder / token_store.FACTS).is_file():
            return _state(folder)
        failure_file(folder).unlink(missing_ok=True)
        length = path.stat().st_size
        room = SPARE_BYTES + STORE_FACTOR * length
        free = shutil.disk_usage(folder.parent).free
        if room > free:
            message = f"may need {size(room)} for its tokens, and the disk of {folder.parent} has {size(free)} free."
            fix = "Free some space, or set LATHE_DATA_DIR to a larger disk."
            return Measurement(
                "failed", problem={"file": "", "line": None, "field": "", "message": message, "fix": fix}
            )
        limits = [str(MEMORY_BYTES), str(SECONDS + length // BYTES_PER_SECOND), str(SPARE_BYTES + 4 * room)]
        command = [
            sys.executable,
            "-m",
            "worker.limited",
            "--writing",
            *limits,
            TOKENIZER,
            *arguments,
            "--locked",
            str(lock),
        ]
        with Path(f"{folder}.log").open("wb") as output:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(),
                cwd=ROOT,
                pass_fds=[lock],
                start_new_session=True,
            )
    finally:
        os.close(lock)
    threading.Thread(target=_collect, args=(child, folder), name=f"tokenizing {folder.name}", daemon=True).start()
    return Measurement("running")


def _collect(child: "subprocess.Popen[bytes]", folder: Path) -> None:
    """Waits for the process, so that no zombie stays, and says why it ended where it could not say so itself."""
    code = child.wait()
    token_cache.make_room(keep=folder)
    if code in (0, -signal.SIGTERM) or failure_file(folder).exists():
        return
    what = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    log.warning("tokenizing into %s ended with %s", folder, what)
    message = f"could not be tokenized: the process that did it was ended ({what}), mostly for want of memory."
    problem = {
        "file": "",
        "line": None,
        "field": "",
        "message": message,
        "fix": "Shorten its longest rows, or try again.",
    }
    failure_file(folder).write_text(json.dumps(problem), encoding="utf-8")


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE") if name in os.environ}
    return environment() | kept | {"TOKENIZERS_PARALLELISM": "true", "TRANSFORMERS_VERBOSITY": "error"}


def _json(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found
