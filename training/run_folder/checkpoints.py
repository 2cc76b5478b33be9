"""Finds, completes and deletes checkpoints.

A checkpoint is complete once its manifest (size and hash of every file) is on disk: it is written last, synced, and renamed into
place. A truncated checkpoint has no manifest; a damaged one does not match it.
"""

import json
import shutil
from pathlib import Path

from training.files import sha256, sync, sync_tree
from training.run_folder.paths import MANIFEST_FILE, checkpoint_step, checkpoints_dir


def seal(checkpoint: Path) -> int:
    """Writes the manifest of a checkpoint after all its other files; returns its size in bytes. Raises OSError if a file cannot
    be read, or the disk is full."""
    present = sorted(path for path in checkpoint.rglob("*") if path.is_file() and MANIFEST_FILE not in path.name)
    files = {str(file.relative_to(checkpoint)): _entry(file) for file in present}
    sync_tree(checkpoint)
    temporary = checkpoint / f".{MANIFEST_FILE}.tmp"
    temporary.write_text(json.dumps({"files": files}), encoding="utf-8")
    sync(temporary)
    temporary.rename(checkpoint / MANIFEST_FILE)
    sync(checkpoint)
    sync(checkpoint.parent)
    return sum(int(entry["bytes"]) for entry in files.values())


def fault(checkpoint: Path) -> str:
    """The reason why a checkpoint cannot be used; empty if it is complete."""
    try:
        files = json.loads((checkpoint / MANIFEST_FILE).read_text(encoding="utf-8"))["files"]
    except FileNotFoundError:
        return "it is incomplete"
    except (OSError, ValueError, KeyError):
        return "its manifest cannot be read"
    for name, entry in files.items():
        file = checkpoint / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != entry["bytes"]:
            return f"{name} has {file.stat().st_size} bytes instead of {entry['bytes']}"
        if sha256(file) != entry["sha256"]:
            return f"{name} is damaged (its hash differs)"
    return ""


def newest_checkpoint(run_dir: Path) -> tuple[Path | None, list[str]]:
    """The newest complete checkpoint of a run, and the reason for each newer one that was skipped."""
    rejected: list[str] = []
    for checkpoint in _newest_first(run_dir):
        reason = fault(checkpoint)
        if not reason:
            return checkpoint, rejected
        rejected.append(f"{checkpoint.name}: {reason}")
    return None, rejected


def prune(run_dir: Path, keep: int, also: int | None = None) -> None:
    """Deletes all but the `keep` newest complete checkpoints and that of step `also`. Call it after the newest is complete."""
    for checkpoint in [path for path in sealed(run_dir)[keep:] if checkpoint_step(path) != also]:
        discard(checkpoint)


def discard(checkpoint: Path) -> None:
    """Deletes a checkpoint. An incomplete one would mix with the files of a new one of the same step."""
    (checkpoint / MANIFEST_FILE).unlink(missing_ok=True)  # first: a half-deleted checkpoint must not count as complete
    shutil.rmtree(checkpoint)


def sealed(run_dir: Path) -> list[Path]:
    """Checkpoints with a manifest, newest first; `fault` checks it."""
    return [checkpoint for checkpoint in _newest_first(run_dir) if (checkpoint / MANIFEST_FILE).exists()]


def unsealed(run_dir: Path) -> list[Path]:
    """Checkpoints without a manifest, from a process that was killed while saving."""
    return [checkpoint for checkpoint in _newest_first(run_dir) if not (checkpoint / MANIFEST_FILE).exists()]


def _newest_first(run_dir: Path) -> list[Path]:
    steps = {path: checkpoint_step(path) for path in checkpoints_dir(run_dir).glob("*") if path.is_dir()}
    numbered = {path: step for path, step in steps.items() if step is not None}
    return sorted(numbered, key=lambda path: numbered[path], reverse=True)


def _entry(file: Path) -> dict[str, int | str]:
    return {"bytes": file.stat().st_size, "sha256": sha256(file)}
