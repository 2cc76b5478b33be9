"""The files that a finished run is downloaded as."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from zipfile import ZIP_STORED, ZipFile, ZipInfo

from worker.units import size

ARCHIVE_FILE = "adapter.zip"
MERGED_FILE = "merged.zip"
GGUF_FILE = "model.gguf"
RESULT_FOLDERS = ("adapter", "model")
MERGED_FOLDER = "merged"
_CHUNK_BYTES = 16 * 2**20
_SPARE_BYTES = 2**20


def result_folder(run_dir: Path) -> Path | None:
    """Where the trainer saved what it made: the adapter, or the whole model; None where it has not."""
    return next((run_dir / name for name in RESULT_FOLDERS if (run_dir / name).is_dir()), None)


def pack_results(run_dir: Path, beat: Callable[[], None]) -> None:
    """Packs what a finished run has made, the merged model too where there is room; `lathe export` copies that otherwise.

    Raises:
        OSError: the disk has no room for the result.
    """
    result, merged = result_folder(run_dir), run_dir / MERGED_FOLDER
    if result is None:
        return
    if missing := missing_bytes(result):
        raise OSError(errno.ENOSPC, f"{size(missing)} more are needed to pack the result")
    pack(result, run_dir / ARCHIVE_FILE, beat)
    if merged.is_dir() and not missing_bytes(merged):
        pack(merged, run_dir / MERGED_FILE, beat)


def pack(folder: Path, target: Path, beat: Callable[[], None]) -> None:
    """Packs the files of `folder`, names relative to it, into `target`, which is there whole or not at all.

    Weights do not get smaller, so nothing is compressed. `beat` is called all along: whole models take minutes.

    Raises:
        OSError: the disk is full, and then nothing is left of it.
    """
    part = target.with_name(f"{target.name}.part")
    try:
        with part.open("wb") as stream:
            with ZipFile(stream, "w", ZIP_STORED) as archive:
                for file in sorted(path for path in folder.rglob("*") if path.is_file()):
                    _add(archive, file, file.relative_to(folder).as_posix(), beat)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _add(archive: ZipFile, file: Path, name: str, beat: Callable[[], None]) -> None:
    entry = ZipInfo.from_file(file, name, strict_timestamps=False)
    with file.open("rb") as source, archive.open(entry, "w", force_zip64=entry.file_size >= 2**31) as packed:
        while chunk := source.read(_CHUNK_BYTES):
            packed.write(chunk)
            beat()


def missing_bytes(folder: Path) -> int:
    """How many bytes of disk are wanting to pack `folder` beside itself; 0 where there is room."""
    needed = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) + _SPARE_BYTES
    return max(0, needed - shutil.disk_usage(folder).free)
