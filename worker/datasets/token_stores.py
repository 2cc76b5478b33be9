"""Tokenizes a data set in a detached process whose progress any process can read, and removes token stores.

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
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from training.errors import DataError
from training.jail.confinement import MOST_THREADS
from training.limited import Limits
from training.tokens import store as token_store
from training.tokens.make_store import failure_file, read_progress
from training.units import byte_size, signal_name
from worker.datasets.checking import length_of
from worker.machine import programs
from worker.machine.sizes import size_of
from worker.machine.turns import Turns
from worker.settings import get_settings

log = logging.getLogger(__name__)

TOKENIZER_VARIABLES = {
    "TOKENIZERS_PARALLELISM": "true",
    "TRANSFORMERS_VERBOSITY": "error",
    "RAYON_NUM_THREADS": str(min(MOST_THREADS // 2, os.cpu_count() or 1)),
}
STORE_FACTOR = 8  # a store rarely exceeds 8 times its file: four bytes per token, and facts about the rows
SPARE_BYTES = 64 * 2**20
_LOOK_SECONDS = 0.2
turns = Turns(max(4, (os.cpu_count() or 1) // 2))
"""Data sets that this process has tokenized or compared at a time."""


@dataclass(frozen=True)
class TokenCount:
    """The state of a tokenization. `total` is 0 if unknown; `problem` has file, line, field, message, fix."""

    status: Literal["absent", "running", "done", "failed"]
    done: int = 0
    total: int = 0
    problem: dict[str, Any] | None = None
    store: Path | None = None


def folder_of(
    sha256: str, model: str, columns: str | None = None, revision: str | None = None, part: str = "", chat: str = ""
) -> Path:
    """The folder of the tokens for this data, tokenizer and mapping; `part` is a `StoredText`, `chat` the key of the run's
    `ChatSettings`."""
    return get_settings().tokens_dir / token_store.store_key(sha256, model, columns, revision, part, chat)


def state(
    sha256: str,
    model: str,
    columns: str | None = None,
    *,
    revision: str | None = None,
    part: str = "",
    chat: str = "",
) -> TokenCount:
    """The current state; starts nothing."""
    return _state(folder_of(sha256, model, columns, revision, part, chat))


def measure(
    path: Path,
    sha256: str,
    model: str,
    columns: str | None = None,
    *,
    rows: int = 0,
    name: str = "",
    retry: bool = False,
) -> TokenCount:
    """Starts to tokenize a file, unless that is running, done or failed; with `retry`, a failed one starts again.

    `rows` is the total for the progress; `name` is the file's name in messages.
    """
    folder = folder_of(sha256, model, columns)
    count = _state(folder)
    if count.status in ("done", "running") or (count.status == "failed" and not retry):
        return count
    end = turns.begun()
    if end is None:
        return TokenCount("running")  # it waits for others: who asks again starts it
    with ExitStack() as turn:
        turn.callback(end)
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            started = program(path, folder, model, columns, rows=rows, name=name or path.name)
        except DataError as error:
            return TokenCount("failed", problem=_problem(error.message, error.fix))
        return _start(path, folder, *started, turn)


def program(
    path: Path, folder: Path, model: str, columns: str | None, *, rows: int, name: str
) -> tuple[list[str], Limits]:
    """The arguments and the limits of the program that tokenizes a file into `folder`.

    Raises:
        DataError: the file is not there, or may not be read.
    """
    arguments = [str(path.absolute()), "--model", model, "--into", str(folder.absolute()), "--rows", str(rows)]
    arguments += ["--name", name, *(["--columns", columns] if columns else [])]
    length = length_of(path)
    written = SPARE_BYTES + 4 * (SPARE_BYTES + STORE_FACTOR * length)
    return arguments, programs.MAKE_STORE.limits(length=length, file_bytes=written)


def wait(current: Callable[[], TokenCount], on_progress: Callable[[TokenCount], None] | None = None) -> Path:
    """Waits for a tokenization and returns the folder of its store.

    `current` returns its state; `on_progress` receives each state while it runs.

    Raises:
        DataError: it failed, or was killed.
    """
    tries = 5  # a killed process is marked as failed a moment later
    while (count := current()).status in ("running", "absent") and tries:
        tries = 5 if count.status == "running" else tries - 1
        if on_progress:
            on_progress(count)
        time.sleep(_LOOK_SECONDS)
    if count.store is None:
        problem = count.problem or _problem("was not tokenized.", "Try again.")
        raise DataError(**problem)
    return count.store


def _state(folder: Path) -> TokenCount:
    if token_store.is_whole(folder):
        return TokenCount("done", store=folder)
    if token_store.is_being_made(folder):
        return TokenCount("running", *read_progress(folder))
    if token_store.is_whole(folder):  # finished between the two checks
        return TokenCount("done", store=folder)
    try:
        return TokenCount("failed", problem=json.loads(failure_file(folder).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return TokenCount("absent")


def _problem(message: str, fix: str) -> dict[str, Any]:
    return {"file": "", "line": None, "field": "", "message": message, "fix": fix}


def _start(path: Path, folder: Path, arguments: list[str], limits: Limits, turn: ExitStack) -> TokenCount:
    """Starts the process, which inherits the lock, so that the store is never unlocked in between. It has the turn to its end."""
    lock = os.open(token_store.lock_file(folder), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return _state(folder)
        if token_store.is_whole(folder):
            return _state(folder)
        failure_file(folder).unlink(missing_ok=True)
        room = SPARE_BYTES + STORE_FACTOR * path.stat().st_size
        free = shutil.disk_usage(folder.parent).free
        if room > free:
            message = (
                f"may need {byte_size(room)} for its tokens; the disk of {folder.parent} has {byte_size(free)} free."
            )
            fix = "Free disk space, or set LATHE_DATA_DIR to a larger disk."
            return TokenCount("failed", problem=_problem(message, fix))
        with Path(f"{folder}.log").open("wb") as output:
            child = programs.start(
                programs.MAKE_STORE,
                [*arguments, "--locked", str(lock)],
                limits,
                env=TOKENIZER_VARIABLES,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[lock],
                start_new_session=True,
            )
    finally:
        os.close(lock)
    work = child, folder, turn.pop_all()
    threading.Thread(target=_collect, args=work, name=f"tokenizing {folder.name}", daemon=True).start()
    return TokenCount("running")


def _collect(child: "subprocess.Popen[bytes]", folder: Path, turn: ExitStack) -> None:
    """Waits for the process, whose turn ends with it, and records the failure if it was killed."""
    with turn:
        code = child.wait()
    make_room(keep=folder)
    if code in (0, -signal.SIGTERM) or failure_file(folder).exists():
        return
    what = signal_name(-code) if code < 0 else f"exit code {code}"
    log.warning("tokenizing into %s ended with %s", folder, what)
    message = f"could not be tokenized: the process was killed ({what}), probably for lack of memory."
    problem = _problem(message, "Shorten its longest rows, or try again.")
    failure_file(folder).write_text(json.dumps(problem), encoding="utf-8")


def drop(sha256: str) -> None:
    """Removes the tokens of a data set, for every tokenizer; those in use stay until the next cleanup."""
    for folder in stores():
        if folder.name.startswith(f"{sha256[:16]}-"):
            remove(folder)


def keep_only(sha256s: set[str]) -> None:
    """Removes the tokens of all other data sets, and leftovers of killed processes."""
    beginnings = {sha256[:16] for sha256 in sha256s}
    for folder in stores():
        if folder.name.partition("-")[0] not in beginnings:
            remove(folder)
    for aside in get_settings().tokens_dir.glob(".making-*"):
        if not token_store.is_being_made(aside.with_name(aside.name.removeprefix(".making-"))):
            shutil.rmtree(aside, ignore_errors=True)


def make_room(keep: Path | None = None) -> None:
    """Removes the least recently read stores until all together fit into LATHE_TOKEN_CACHE_BYTES."""
    sizes = {folder: size_of(folder).bytes for folder in stores()}
    over = sum(sizes.values()) - get_settings().token_cache_bytes
    for folder in sorted(sizes, key=lambda folder: folder.stat().st_mtime if folder.exists() else 0):
        if over <= 0:
            return
        if folder != keep and remove(folder):
            over -= sizes[folder]


def stores() -> list[Path]:
    """The folders of all token stores."""
    folder = get_settings().tokens_dir
    return [path for path in folder.iterdir() if (path / token_store.FACTS).is_file()] if folder.is_dir() else []


def remove(folder: Path) -> bool:
    """Removes a store unless a process makes or uses it; True if it was removed."""
    removed = token_store.remove(folder)
    if removed:
        failure_file(folder).unlink(missing_ok=True)
        Path(f"{folder}.log").unlink(missing_ok=True)
    return removed
