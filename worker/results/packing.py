"""Packs the result of a finished run for download."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from zipfile import ZIP_STORED, ZipFile, ZipInfo

from training.files import sync, whole_file
from training.run_folder.paths import ARCHIVE_FILE, MERGED_FILE, MERGED_FOLDER, saved_result
from training.units import byte_size

_CHUNK_BYTES = 16 * 2**20
_SPARE_BYTES = 2**20


def pack_results(run_dir: Path, beat: Callable[[int], object] = lambda _packed: None) -> None:
    """Packs the result of a finished run, and the merged model if there is space; otherwise use `lathe export`.

    Raises:
        OSError: the disk has no space for the result.
    """
    result, merged = saved_result(run_dir), run_dir / MERGED_FOLDER
    if result is None:
        return
    if missing := missing_bytes(result):
        raise OSError(errno.ENOSPC, f"{byte_size(missing)} more of disk space needed to pack the result")
    pack(result, run_dir / ARCHIVE_FILE, beat)
    if merged.is_dir() and not missing_bytes(merged):
        pack(merged, run_dir / MERGED_FILE, beat)


def pack(folder: Path, target: Path, beat: Callable[[int], object] = lambda _packed: None) -> None:
    """Packs the files of `folder`, with relative names, into `target`, which is replaced in one step.

    Nothing is compressed, since weights do not shrink. `beat` is called after each chunk, with the bytes so
    far: large models take minutes.

    Raises:
        OSError: the disk is full; no partial file is left.
    """
    with whole_file(target) as part, part.open("wb") as stream:
        with ZipFile(stream, "w", ZIP_STORED) as archive:
            for file in sorted(path for path in folder.rglob("*") if path.is_file()):
                _add(archive, file, file.relative_to(folder).as_posix(), beat)
        stream.flush()
        sync(part)


def _add(archive: ZipFile, file: Path, name: str, beat: Callable[[int], object]) -> None:
    entry = ZipInfo.from_file(file, name, strict_timestamps=False)
    with file.open("rb") as source, archive.open(entry, "w", force_zip64=entry.file_size >= 2**31) as packed:
        while chunk := source.read(_CHUNK_BYTES):
            packed.write(chunk)
            assert archive.fp
            beat(archive.fp.tell())


def missing_bytes(folder: Path) -> int:
    """Bytes of disk space missing to pack `folder` beside itself; 0 if there is enough."""
    needed = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) + _SPARE_BYTES
    return max(0, needed - shutil.disk_usage(folder).free)
