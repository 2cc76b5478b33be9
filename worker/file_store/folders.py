"""Uploads and downloads folders. A folder counts as complete once its manifest is there, which is uploaded last."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from training.files import sha256, write_whole
from training.run_folder.paths import MANIFEST_FILE
from worker.file_store.object_store import ObjectStore

JOURNAL_FILE = ".uploaded.json"
Entries = dict[str, dict[str, Any]]


class DamagedFile(OSError):  # noqa: N818
    """A downloaded file does not have the hash of its manifest."""


class Journal:
    """What was uploaded, by key and hash, so that an interrupted upload continues with the next file."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / JOURNAL_FILE
        try:
            self._hashes: dict[str, str] = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            self._hashes = {}

    def has(self, key: str, digest: str) -> bool:
        return self._hashes.get(key) == digest

    def add(self, key: str, digest: str) -> None:
        self._hashes[key] = digest
        write_whole(self._file, json.dumps(self._hashes))


def push_folder(store: ObjectStore, folder: Path, key: str, journal: Journal) -> None:
    """Uploads a folder: what is missing or differs, then the manifest. A checkpoint brings its own manifest.

    Raises:
        FileNotFoundError: a file was deleted meanwhile.
    """
    manifest = folder / MANIFEST_FILE
    content = manifest.read_bytes() if manifest.exists() else json.dumps({"files": _entries(folder)}).encode()
    digest = hashlib.sha256(content).hexdigest()
    target = f"{key}/{MANIFEST_FILE}"
    if journal.has(target, digest) and store.size(target) == len(content):
        return
    store.delete(target)  # files that change must not count as those of the old manifest
    for name, entry in json.loads(content)["files"].items():
        push_file(store, folder / name, f"{key}/{name}", journal, str(entry["sha256"]))
    part = folder.with_name(f".{folder.name}.{MANIFEST_FILE}")
    try:
        part.write_bytes(content)
        store.upload(part, target)
    finally:
        part.unlink(missing_ok=True)
    journal.add(target, digest)


def push_file(store: ObjectStore, file: Path, key: str, journal: Journal, digest: str | None = None) -> None:
    """Uploads a file unless the same was uploaded before."""
    digest = digest or sha256(file)
    if not (journal.has(key, digest) and store.size(key) == file.stat().st_size):
        store.upload(file, key)
        journal.add(key, digest)


def pull_folder(store: ObjectStore, key: str, folder: Path) -> bool:
    """Downloads a complete folder: what is missing or differs, then the manifest. False if the store has no complete one.

    Raises:
        DamagedFile: a file does not have the hash of the manifest.
    """
    content = store.read(f"{key}/{MANIFEST_FILE}")
    if content is None:
        return False
    for name, entry in json.loads(content)["files"].items():
        file = folder / name
        if not (file.is_file() and sha256(file) == entry["sha256"]):
            store.download(f"{key}/{name}", file)
        if sha256(file) != entry["sha256"]:
            file.unlink()
            raise DamagedFile(f"{key}/{name} is damaged in the object store: its hash differs from the manifest's.")
    _write_synced(folder / MANIFEST_FILE, content)
    return True


def _entries(folder: Path) -> Entries:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(file.relative_to(folder)): {"bytes": file.stat().st_size, "sha256": sha256(file)} for file in files}


def _write_synced(file: Path, content: bytes) -> None:
    part = file.with_name(f".{file.name}.tmp")
    with part.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(file)
