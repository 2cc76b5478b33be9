"""The folder of tokenized data sets: what belongs to a removed set goes, and the least used where they take too much."""

import shutil
from pathlib import Path

from training import token_store
from training.tokenizing import failure_file
from worker.settings import get_settings


def drop(sha256: str) -> None:
    """Removes the tokens of a data set, for every tokenizer; what a run still reads stays until the next clearing."""
    for folder in _stores():
        if folder.name.startswith(f"{sha256[:16]}-"):
            _remove(folder)


def keep_only(sha256s: set[str]) -> None:
    """Removes the tokens of all data but these, and what killed processes left."""
    beginnings = {sha256[:16] for sha256 in sha256s}
    for folder in _stores():
        if folder.name.partition("-")[0] not in beginnings:
            _remove(folder)
    for aside in get_settings().tokens_dir.glob(".making-*"):
        if not token_store.is_being_made(aside.with_name(aside.name.removeprefix(".making-"))):
            shutil.rmtree(aside, ignore_errors=True)


def make_room(keep: Path | None = None) -> None:
    """Removes the stores that nobody has read for longest, until all take no more than LATHE_TOKEN_CACHE_BYTES."""
    sizes = {folder: _size(folder) for folder in _stores()}
    over = sum(sizes.values()) - get_settings().token_cache_bytes
    for folder in sorted(sizes, key=lambda folder: folder.stat().st_mtime if folder.exists() else 0):
        if over <= 0:
            return
        if folder != keep and _remove(folder):
            over -= sizes[folder]


def _stores() -> list[Path]:
    folder = get_settings().tokens_dir
    return [path for path in folder.iterdir() if (path / token_store.FACTS).is_file()] if folder.is_dir() else []


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def _remove(folder: Path) -> bool:
    removed = token_store.remove(folder)
    if removed:
        failure_file(folder).unlink(missing_ok=True)
        Path(f"{folder}.log").unlink(missing_ok=True)
    return removed
