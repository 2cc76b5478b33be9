"""The cache of DeepSpeed's compiled operators on this machine. No torch.

An operator is a shared library in its own folder, with a stamp: the environment in which it was compiled and the library's hash.
Without a stamp the compilation was interrupted; a different stamp means other versions or a damaged file.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TextIO

from training.files import sha256, write_whole

ROOT_VARIABLE = "TORCH_EXTENSIONS_DIR"
PHASE = "compiling DeepSpeed operators"
_STAMP = "lathe.json"
_LOCK = "lathe.lock"
_POLL_SECONDS = 0.2


def use_own_folder() -> None:
    """Sets TORCH_EXTENSIONS_DIR to a folder for this environment's versions, unless the user has set it.

    All environments of a Python version share torch's default folder, and each recompiles everything there.
    """
    if not os.environ.get(ROOT_VARIABLE):
        cache_root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        os.environ[ROOT_VARIABLE] = str(cache_root / "lathe" / f"operators-{_digest(environment())}")


def folder_of(name: str) -> Path:
    """The folder in which torch compiles the operator `name`; creates it."""
    folder = Path(os.environ[ROOT_VARIABLE]) / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@cache
def environment() -> str:
    """The versions and the processor that an operator is compiled for."""
    libraries = [f"{name} {version(name)}" for name in ("torch", "deepspeed")]
    return ", ".join([*libraries, sys.implementation.cache_tag, platform.machine(), _digest(_processor())])


def usable(folder: Path, name: str) -> Path | None:
    """The operator's library, or None if it must be compiled: it is missing, truncated, damaged or of another environment."""
    library = folder / f"{name}.so"
    try:
        stamp = json.loads((folder / _STAMP).read_text(encoding="utf-8"))
        matches = stamp == {"environment": environment(), "sha256": sha256(library)}
    except (OSError, ValueError):
        return None
    return library if matches else None


def stamp(folder: Path, name: str) -> None:
    """Writes the stamp of the operator in `folder`. Call it after the operator has been loaded."""
    text = json.dumps({"environment": environment(), "sha256": sha256(folder / f"{name}.so")})
    write_whole(folder / _STAMP, text)


def clear(folder: Path) -> None:
    """Deletes the files of an earlier compilation in `folder`. The caller holds its lock."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != _LOCK:
            path.unlink(missing_ok=True)


def compiled_files(folder: Path) -> int:
    """The number of object files and libraries that the compiler has written so far."""
    return sum(path.suffix in (".o", ".so") for path in folder.iterdir())


@contextlib.contextmanager
def alone(folder: Path, waits: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Locks `folder` for one process; calls `waits` repeatedly until it has the lock.

    The lock ends with its process. torch's own lock is a file that a killed process leaves behind, which blocks all others.
    """
    with (folder / _LOCK).open("w") as lock:
        while not _take(lock):
            waits()
            time.sleep(_POLL_SECONDS)
        torch_lock = folder / "lock"
        while torch_lock.exists():  # of another program, which may have been killed
            if _is_open(torch_lock):
                time.sleep(_POLL_SECONDS)
            else:
                torch_lock.unlink(missing_ok=True)
        yield


def _take(lock: TextIO) -> bool:
    """Locks the open file for this process; False if another process holds the lock."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _is_open(file: Path) -> bool:
    """True if a process has the file open, as torch does with its lock during compilation."""
    path = str(file.resolve())
    for handle in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(handle.readlink()) == path:
                return True
        except OSError:  # closed, or of another user
            continue
    return False


def _processor() -> str:
    """The processor's features, for which DeepSpeed compiles (-march=native)."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return platform.processor()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
