"""Which checkpoints are whole.

A checkpoint counts once its manifest (every file, its size and hash) is on disk: written last, synced, and renamed into
place. A checkpoint that was cut off has none; one that was damaged later does not match it.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path

MANIFEST = "manifest.json"
_PREFIX = "checkpoint-"


def checkpoints_dir(run_dir: Path) -> Path:
    return run_dir / "checkpoints"


def step_of(checkpoint: Path) -> int:
    """The optimizer step at which a checkpoint was taken, by its folder's name."""
    return int(checkpoint.name.removeprefix(_PREFIX))


def seal(checkpoint: Path) -> int:
    """Writes the manifest of a checkpoint whose files are all written; returns its size in bytes.

    Raises:
        OSError: a file cannot be read, or the disk is full.
    """
    files = {str(file.relative_to(checkpoint)): _entry(file) for file in _files(checkpoint)}
    temporary = checkpoint / f".{MANIFEST}.tmp"
    with temporary.open("w", encoding="utf-8") as stream:
        json.dump({"files": files}, stream)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.rename(checkpoint / MANIFEST)
    _sync_directory(checkpoint)
    return sum(int(entry["bytes"]) for entry in files.values())


def fault(checkpoint: Path) -> str:
    """Why a checkpoint cannot be used, in words; empty where it is whole."""
    try:
        files = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))["files"]
    except FileNotFoundError:
        return "it was not written to its end"
    except (OSError, ValueError, KeyError):
        return "its manifest cannot be read"
    for name, entry in files.items():
        file = checkpoint / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != entry["bytes"]:
            return f"{name} has {file.stat().st_size} bytes instead of {entry['bytes']}"
        if _sha256(file) != entry["sha256"]:
            return f"{name} is damaged (its hash differs)"
    return ""


def newest_checkpoint(run_dir: Path) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint of a run, and why each newer one was passed over."""
    rejected: list[str] = []
    for checkpoint in _newest_first(run_dir):
        reason = fault(checkpoint)
        if not reason:
            return checkpoint, rejected
        rejected.append(f"{checkpoint.name}: {reason}")
    return None, rejected


def prune(run_dir: Path, keep: int, also: int | None = None) -> None:
    """Deletes all but the `keep` newest sealed checkpoints and that of step `also`. Called once the newest is sealed, so
    one is always whole."""
    for checkpoint in [old for old in sealed(run_dir)[keep:] if step_of(old) != also]:
        (checkpoint / MANIFEST).unlink()  # first, so that a half-deleted one is never taken for whole
        shutil.rmtree(checkpoint)


def discard(checkpoint: Path) -> None:
    """Deletes what is left of a checkpoint that is not whole, so that a new one of the same step starts clean."""
    (checkpoint / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(checkpoint)


def sealed(run_dir: Path) -> list[Path]:
    """Checkpoints with a manifest, the newest first; whether it holds is for `fault` to say."""
    return [checkpoint for checkpoint in _newest_first(run_dir) if (checkpoint / MANIFEST).exists()]


def unsealed(run_dir: Path) -> list[Path]:
    """Checkpoints without a manifest: what a kill in the middle of saving leaves behind."""
    return [checkpoint for checkpoint in _newest_first(run_dir) if not (checkpoint / MANIFEST).exists()]


def _newest_first(run_dir: Path) -> list[Path]:
    folders = [
        path
        for path in checkpoints_dir(run_dir).glob(f"{_PREFIX}*")
        if path.is_dir() and path.name[len(_PREFIX) :].isdigit()
    ]
    return sorted(folders, key=step_of, reverse=True)


def _files(checkpoint: Path) -> list[Path]:
    return sorted(path for path in checkpoint.rglob("*") if path.is_file() and MANIFEST not in path.name)


def _entry(file: Path) -> dict[str, int | str]:
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
    return {"bytes": file.stat().st_size, "sha256": _sha256(file)}


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync_directory(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
