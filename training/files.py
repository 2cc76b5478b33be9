"""Opens files that users name, writes files and folders whole or not at all, and hashes them."""

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO

_SCRATCH = ".part"
_LOCK = ".lock"
_MOST_OF_NAME = 100
_BLOCK = 2**20


def open_regular(path: Path) -> BinaryIO:
    """The file, opened for reading; only a regular one. Opening a named pipe would wait for its writer, perhaps for ever.

    Raises:
        OSError: it cannot be opened, or is a folder, a pipe, a socket or a device.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return os.fdopen(handle, "rb")


def read_regular(path: Path, most_bytes: int) -> bytes:
    """The first `most_bytes` bytes of the file.

    Raises:
        OSError: as `open_regular`.
    """
    with open_regular(path) as stream:
        return stream.read(most_bytes)


def first_blocks(path: Path, most_bytes: int) -> Iterator[bytes]:
    """The first `most_bytes` bytes of the file in blocks, so that a long file takes no memory.

    Raises:
        OSError: as `open_regular`.
    """
    with open_regular(path) as stream:
        while most_bytes > 0 and (block := stream.read(min(_BLOCK, most_bytes))):
            most_bytes -= len(block)
            yield block


def write_whole(path: Path, text: str) -> None:
    """Writes the file whole or not at all: a failure leaves the former file, and nothing beside it. Only its user can read it.

    Raises:
        OSError: it cannot be written, for example on a full disk.
    """
    with whole_file(path) as part:
        part.touch(mode=0o600)
        part.write_text(text, encoding="utf-8")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Where to write a file, which then replaces `path`; a failure leaves the former file, and nothing beside it."""
    with scratch(path) as folder:
        part = folder / path.name
        yield part
        part.replace(path)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Where to make a folder, which then becomes `path`; a failure leaves nothing."""
    with scratch(path) as folder:
        part = folder / path.name
        yield part
        part.rename(path)


@contextmanager
def scratch(path: Path) -> Iterator[Path]:
    """An empty folder beside `path`, of this writer alone, which is deleted at the end. What killed writers left there is deleted.

    A lock in it, which the kernel releases when its process ends, shows that its writer is alive.
    """
    remove_dead_scratch(path.parent)
    folder, lock = _new_scratch(path)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.close()


def remove_dead_scratch(parent: Path) -> None:
    """Deletes the scratch folders in `parent` whose writers were killed."""
    for folder in _without_lock(parent):
        with suppress(OSError):  # not empty: no folder of `_new_scratch`
            folder.rmdir()
    for folder in parent.glob(f".*{_SCRATCH}"):
        # A writer that has not locked its folder yet notices that it is gone.
        with suppress(OSError), (folder / _LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


def _without_lock(parent: Path) -> list[Path]:
    """The scratch folders in `parent` whose writers were killed before they had made a lock. Those that are new hold the lock of
    `parent`."""
    folders = []
    with suppress(OSError), _opened(parent) as handle:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folders = [path for path in parent.glob(f".*{_SCRATCH}") if path.is_dir() and not (path / _LOCK).exists()]
    return folders


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def _new_scratch(path: Path) -> tuple[Path, IO[str]]:
    """A new folder beside `path` and its lock, which is held while the file is open."""
    while True:
        folder = path.with_name(f".{path.name[:_MOST_OF_NAME]}.{secrets.token_hex(4)}{_SCRATCH}")
        with _opened(path.parent) as parent:
            _held(parent, fcntl.LOCK_SH)
            folder.mkdir(mode=0o700)
            with suppress(FileNotFoundError):  # another process took it for a dead writer's
                lock = (folder / _LOCK).open("w", encoding="utf-8")
                if _held(lock, fcntl.LOCK_EX | fcntl.LOCK_NB) and (folder / _LOCK).exists():
                    return folder, lock
                lock.close()


def _held(file: IO[str] | int, operation: int) -> bool:
    """Locks the open file; False if another process has it. On a file system without locks nobody deletes the folder."""
    try:
        fcntl.flock(file, operation)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Holds the lock of a file, which one thread of one process at a time has. Its folder is made if it is missing."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with file.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def sync(path: Path) -> None:
    """Waits until the file, or the names in the folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Waits until all files and subfolders in `folder` are on the disk; `sync` does it for their names in `folder` itself."""
    for path in folder.rglob("*"):
        if path.is_file() or path.is_dir():
            sync(path)


def check_free_space(folder: Path, needed: int, what: str) -> None:
    """Checks that the disk of `folder` has `needed` bytes for `what`.

    Raises:
        OSError: it has less; with both numbers.
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OSError(errno.ENOSPC, f"{what} needs up to {needed:,} bytes, and the disk has {free:,} free")


def sha256(file: Path) -> str:
    """The SHA-256 of a file's content, in hex."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
