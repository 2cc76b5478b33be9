"""The folder of tokenized data sets; removes those of deleted data sets, and the least used if it grows too large."""

import shutil
from pathlib import Path

from training.tokens import store
from training.tokens.make_store import failure_file
from worker.settings import get_settings


def drop(sha256: str) -> None:
    """Removes the tokens of a data set, for every tokenizer; those in use stay until the next cleanup."""
    for folder in stores():
        if folder.name.startswith(f"{sha256[:16]}-"):
            remove(folder)


def keep_only(sha256s: set[str]) -> None:
    """Removes the tokens of all other data sets, and leftovers of killed processes."""
    beginnings = {sha256[:16] for sha256 in sha256s}
    for folder in stores():
        if folder.name.partition("-")[0] not in beginnings:
            remove(folder)
    for aside in get_settings().tokens_dir.glob(".making-*"):
        if not store.is_being_made(aside.with_name(aside.name.removeprefix(".making-"))):
            shutil.rmtree(aside, ignore_errors=True)


def make_room(keep: Path | None = None) -> None:
    """Removes the least recently read stores until all together fit into LATHE_TOKEN_CACHE_BYTES."""
    sizes = {folder: _size(folder) for folder in stores()}
    over = sum(sizes.values()) - get_settings().token_cache_bytes
    for folder in sorted(sizes, key=lambda folder: folder.stat().st_mtime if folder.exists() else 0):
        if over <= 0:
            return
        if folder != keep and remove(folder):
            over -= sizes[folder]


def stores() -> list[Path]:
    """The folders of all token stores."""
    folder = get_settings().tokens_dir
    return [path for path in folder.iterdir() if (path / store.FACTS).is_file()] if folder.is_dir() else []


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def remove(folder: Path) -> bool:
    """Removes a store unless a process makes or uses it; True if it was removed."""
    removed = store.remove(folder)
    if removed:
        failure_file(folder).unlink(missing_ok=True)
        Path(f"{folder}.log").unlink(missing_ok=True)
    return removed
