"""The forms that are made of a run's result or of a checkpoint, in the run's folder; each can be made again."""

from pathlib import Path

from training.run_folder.gguf_types import GGUF_FILES
from training.run_folder.paths import ARCHIVE_FILE, MERGED_FILE, MERGED_FOLDER, checkpoint_step


def is_derived(path: Path) -> bool:
    """True for a merged model, a GGUF file, and the packed weights of a checkpoint."""
    of_checkpoint = path.suffix == ".zip" and checkpoint_step(path.with_suffix("")) is not None
    return path.name in (MERGED_FOLDER, MERGED_FILE, *GGUF_FILES) or of_checkpoint


def outdated(run_dir: Path) -> list[Path]:
    """What a new result makes out of date: all forms of the one before, packed ones too."""
    return [path for path in run_dir.iterdir() if is_derived(path) or path.name == ARCHIVE_FILE]
