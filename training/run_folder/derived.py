"""The forms that are made of a run's result or of a checkpoint, in the run's folder; each can be made again."""

import shutil
from pathlib import Path

from training.run_folder.gguf_types import GGUF_FILES
from training.run_folder.paths import (
    ARCHIVE_FILE,
    MERGED_FILE,
    MERGED_FOLDER,
    PARITY_FILE,
    PARITY_FOLDER,
    UNFINISHED_FOLDER,
    checkpoint_step,
)


def is_derived(path: Path) -> bool:
    """True for a merged model, a GGUF file, and the packed weights of a checkpoint."""
    of_checkpoint = path.suffix == ".zip" and checkpoint_step(path.with_suffix("")) is not None
    return path.name in (MERGED_FOLDER, MERGED_FILE, *GGUF_FILES) or of_checkpoint


def is_outdated(path: Path) -> bool:
    """True for what does not belong to a new result: all forms of the one before, packed ones too, and how they compared."""
    return is_derived(path) or path.name in (ARCHIVE_FILE, PARITY_FILE, PARITY_FOLDER, UNFINISHED_FOLDER)


def remove_outdated(run_dir: Path) -> None:
    """Deletes the forms of a run's earlier result."""
    for path in filter(is_outdated, list(run_dir.iterdir())):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
