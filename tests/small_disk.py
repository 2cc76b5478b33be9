"""Small disks, which tests fill."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

MIB = 2**20


@contextlib.contextmanager
def small_disk(folder: Path, mebibytes: int, inodes: int = 0) -> Iterator[Path]:
    """Mounts a small disk at `folder`; with `inodes` for so many files and folders at most."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = [
        "mount",
        "-t",
        "tmpfs",
        "-o",
        f"size={mebibytes}m" + (f",nr_inodes={inodes}" if inodes else ""),
        "tmpfs",
        str(folder),
    ]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path) -> Path:
    """Fills the free space of the disk."""
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("ab", buffering=0) as stream:
        for size in (MIB, 4096, 1):
            with contextlib.suppress(OSError):
                while stream.write(bytes(size)) == size:
                    pass
    return filler


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Lets no file in `folder` be opened for writing."""
    if subprocess.run(["mount", "--bind", folder, folder], capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
