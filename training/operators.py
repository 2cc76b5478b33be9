"""Where DeepSpeed's compiled operators are kept on this machine, and which of them can be used. No torch.

An operator is a shared library in a folder of its own. Beside it lies a stamp: the environment that it was compiled in and
the library's hash. One without a stamp was cut off, one with another stamp belongs to other versions or was damaged.
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

import psutil

ROOT_VARIABLE = "TORCH_EXTENSIONS_DIR"
AHEAD_MODULE = "training.compile_operators"
PHASE = "compiling DeepSpeed operators"
_STAMP = "lathe.json"
_LOCK = "lathe.lock"
_LOOK_SECONDS = 0.2


def use_own_folder() -> None:
    """Has torch compile in a folder of this environment's versions, unless a person has named one.

    torch's own folder is shared by all environments of a Python version, each of which compiles everything anew there.
    """
    if not os.environ.get(ROOT_VARIABLE):
        cache_root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        os.environ[ROOT_VARIABLE] = str(cache_root / "lathe" / f"operators-{_digest(environment())}")


def folder_of(name: str) -> Path:
    """The folder in which torch compiles the operator `name`; made where it is not there."""
    folder = Path(os.environ[ROOT_VARIABLE]) / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@cache
def environment() -> str:
    """The versions and the processor that an operator is compiled for."""
    libraries = [f"{name} {version(name)}" for name in ("torch", "deepspeed")]
    return ", ".join([*libraries, sys.implementation.cache_tag, platform.machine(), _digest(_processor())])


def usable(folder: Path, name: str) -> Path | None:
    """The operator's library, or None where it must be compiled: it is missing, cut off, damaged or of another environment."""
    library = folder / f"{name}.so"
    try:
        stamp = json.loads((folder / _STAMP).read_text(encoding="utf-8"))
        whole = stamp == {"environment": environment(), "sha256": _sha256(library)}
    except (OSError, ValueError):
        return None
    return library if whole else None


def stamp(folder: Path, name: str) -> None:
    """Says that the operator in `folder` is whole; to be called once it has been loaded."""
    text = json.dumps({"environment": environment(), "sha256": _sha256(folder / f"{name}.so")})
    part = folder / f"{_STAMP}.part"
    part.write_text(text, encoding="utf-8")
    part.replace(folder / _STAMP)


def clear(folder: Path) -> None:
    """Deletes what an earlier compiler has left in `folder`, whose lock the caller holds."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != _LOCK:
            path.unlink(missing_ok=True)


def compiled_files(folder: Path) -> int:
    """How many files of the operator the compiler has made so far."""
    return sum(path.suffix in (".o", ".so") for path in folder.iterdir())


@contextlib.contextmanager
def alone(folder: Path, waits: Callable[[float], object] = lambda _: None) -> Iterator[None]:
    """One process at a time, by a lock that ends with its process. While another one has it, `waits` is called again and
    again with the seconds so far.

    torch's own lock is a file that a killed process leaves behind, for which everyone after it would wait for ever.
    """
    with (folder / _LOCK).open("w") as mine:
        began = time.monotonic()
        while not take(mine):
            waits(time.monotonic() - began)
            time.sleep(_LOOK_SECONDS)
        theirs = folder / "lock"
        while theirs.exists():  # of a program that is not Lathe, which may be killed while it holds it
            if _is_open(theirs):
                time.sleep(_LOOK_SECONDS)
            else:
                theirs.unlink(missing_ok=True)
        yield


def take(lock: TextIO) -> bool:
    """Locks the open file for this process; False where another one has it."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def ahead_file() -> Path:
    """Locked by the process that compiles ahead, which writes its number there."""
    return Path(os.environ[ROOT_VARIABLE]) / "ahead.lock"


def end_compiling_ahead() -> None:
    """Ends the process that compiles ahead, where there is one: at its priority it may never get a busy processor."""
    with contextlib.suppress(OSError, ValueError, psutil.Error):
        compiler = psutil.Process(int(ahead_file().read_text(encoding="ascii")))
        if AHEAD_MODULE in compiler.cmdline():
            compiler.terminate()


def _is_open(file: Path) -> bool:
    """Whether a process has the file open, as torch has its lock while it compiles."""
    wanted = str(file.resolve())
    for handle in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(handle.readlink()) == wanted:
                return True
        except OSError:  # it was closed, or is another user's
            continue
    return False


def _processor() -> str:
    """What the processor can do: DeepSpeed compiles for exactly that (-march=native)."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return platform.processor()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
