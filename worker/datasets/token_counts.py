"""Tokenizes a data set in a detached process whose progress any process can read.

The process locks the token store that it writes, and writes its progress. Its state is read from the data folder alone, so that a
restarted web server and the command line see the same.
"""

import fcntl
import json
import logging
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from training.errors import DataError
from training.tokens import store as token_store
from training.tokens.make_store import failure_file, read_progress
from training.units import byte_size
from worker.datasets import token_cache
from worker.machine import programs
from worker.machine.programs import Limits
from worker.settings import get_settings

log = logging.getLogger(__name__)

TOKENIZER_VARIABLES = {"TOKENIZERS_PARALLELISM": "true", "TRANSFORMERS_VERBOSITY": "error"}
MEMORY_BYTES = 4 * 2**30  # allocated by the tokenizing process; mapped files do not count
SECONDS = 300  # of CPU time, plus one for each BYTES_PER_SECOND of the file
BYTES_PER_SECOND = 20_000
STORE_FACTOR = 8  # a store rarely exceeds 8 times its file: four bytes per token, and facts about the rows
SPARE_BYTES = 64 * 2**20
_LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class TokenCount:
    """The state of a tokenization. `total` is 0 if unknown; `problem` has file, line, field, message, fix."""

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
    chat: str = "",
) -> Path:
    """The folder of the tokens for this data, tokenizer and mapping."""
    return get_settings().tokens_dir / token_store.store_key(sha256, model, columns, revision, chat=chat)


def state(
    sha256: str,
    model: str,
    columns: str | None = None,
    *,
    revision: str | None = None,
    chat: str = "",
) -> TokenCount:
    """The current state; starts nothing. `chat` is the key of the run's `ChatSettings`."""
    return _state(folder_of(sha256, model, columns, revision, chat))


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
) -> TokenCount:
    """Starts to tokenize a file, unless that is running, done or failed; with `retry`, a failed one starts again.

    `rows` is the total for the progress; `name` is the file's name in messages.
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
    return _start(path, folder, [str(path.absolute()), *arguments])


def wait(current: Callable[[], TokenCount], on_progress: Callable[[TokenCount], None] | None = None) -> Path:
    """Waits for a tokenization and returns the folder of its store.

    `current` returns its state; `on_progress` receives each state while it runs.

    Raises:
        DataError: it failed, or was killed.
    """
    tries = 5  # a killed process is marked as failed a moment later
    while (found := current()).status in ("running", "absent") and tries:
        tries = 5 if found.status == "running" else tries - 1
        if on_progress:
            on_progress(found)
        time.sleep(_LOOK_SECONDS)
    if found.store is None:
        problem = found.problem or {"message": "was not tokenized.", "fix": "Try again."}
        place = {key: problem[key] for key in ("file", "line", "field") if key in problem}
        raise DataError(problem["message"], problem["fix"], **place)
    return found.store


def _state(folder: Path) -> TokenCount:
    if (folder / token_store.FACTS).is_file():
        return TokenCount("done", store=folder)
    if token_store.is_being_made(folder):
        return TokenCount("running", *read_progress(folder))
    if (folder / token_store.FACTS).is_file():  # finished between the two checks
        return TokenCount("done", store=folder)
    if problem := _json(failure_file(folder)):
        return TokenCount("failed", problem=problem)
    return TokenCount("absent")


def _start(path: Path, folder: Path, arguments: list[str]) -> TokenCount:
    """Starts the process, which inherits the lock, so that the store is never unlocked in between."""
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
            message = (
                f"may need {byte_size(room)} for its tokens; the disk of {folder.parent} has {byte_size(free)} free."
            )
            fix = "Free disk space, or set LATHE_DATA_DIR to a larger disk."
            return TokenCount("failed", problem={"file": "", "line": None, "field": "", "message": message, "fix": fix})
        limits = Limits(MEMORY_BYTES, SECONDS + length // BYTES_PER_SECOND, file_bytes=SPARE_BYTES + 4 * room)
        with Path(f"{folder}.log").open("wb") as output:
            child = programs.start_limited(
                programs.MAKE_STORE,
                [*arguments, "--locked", str(lock)],
                limits,
                variables=programs.HUB,
                env=TOKENIZER_VARIABLES,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[lock],
                start_new_session=True,
            )
    finally:
        os.close(lock)
    threading.Thread(target=_collect, args=(child, folder), name=f"tokenizing {folder.name}", daemon=True).start()
    return TokenCount("running")


def _collect(child: "subprocess.Popen[bytes]", folder: Path) -> None:
    """Waits for the process, and records the failure if it was killed."""
    code = child.wait()
    token_cache.make_room(keep=folder)
    if code in (0, -signal.SIGTERM) or failure_file(folder).exists():
        return
    what = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    log.warning("tokenizing into %s ended with %s", folder, what)
    message = f"could not be tokenized: the process was killed ({what}), probably for lack of memory."
    problem = {
        "file": "",
        "line": None,
        "field": "",
        "message": message,
        "fix": "Shorten its longest rows, or try again.",
    }
    failure_file(folder).write_text(json.dumps(problem), encoding="utf-8")


def _json(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found
