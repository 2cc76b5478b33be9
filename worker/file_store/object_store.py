"""Files under keys in an object store, or in a folder, by a URL of fsspec: s3://bucket/prefix, gs://..., file:///mnt/lathe."""

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from training.errors import UserError
from training.files import scratch, sha256, sync, whole_file, write_whole
from training.run_folder.paths import MANIFEST_FILE
from worker.settings import PREFIX, get_settings


class DamagedFile(OSError):  # noqa: N818
    """A file of the store does not have the hash that was written down of it."""


class ObjectStore:
    """Uploads and downloads files. Credentials are those of the store's own library (AWS_ACCESS_KEY_ID, ...).

    Every method raises OSError, or an error of that library, if the store does not answer.
    """

    def __init__(self, url: str) -> None:
        """
        Raises:
            UserError: the URL is of no known kind, or its library is not installed.
        """
        import fsspec

        options = {"use_listings_cache": False, "skip_instance_cache": True}
        try:
            self._files, root = fsspec.core.url_to_fs(url, **options)
        except (ImportError, ValueError) as error:
            fix = "Give a URL such as s3://bucket/lathe, and install the library for it (for s3: pip install s3fs)."
            raise UserError(f"{PREFIX}STORE_URL", url, f"cannot be used: {error}.", fix) from None
        self._root = str(root).rstrip("/")

    def upload(self, file: Path, key: str) -> None:
        """Uploads a file; an existing one is replaced."""
        self._files.makedirs(self._path(key).rpartition("/")[0], exist_ok=True)
        self._files.put_file(str(file), self._path(key))

    def download(self, key: str, file: Path, digest: str = "") -> None:
        """Downloads a file, completely or not at all. Raises DamagedFile if its hash is not `digest`, where that is given."""
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(file) as part:
            self._files.get_file(self._path(key), str(part))
            if digest and sha256(part) != digest:
                raise DamagedFile(f"{key} is damaged in the object store: its hash differs.")

    def read(self, key: str) -> bytes | None:
        """The content of a small file; None if it does not exist."""
        try:
            return bytes(self._files.cat_file(self._path(key)))
        except FileNotFoundError:
            return None

    def size(self, key: str) -> int | None:
        """Bytes of a file; None if it does not exist."""
        try:
            return int(self._files.info(self._path(key))["size"])
        except FileNotFoundError:
            return None

    def keys(self, prefix: str) -> list[str]:
        """The keys of all files below a prefix."""
        return list(self.sizes(prefix))

    def sizes(self, prefix: str) -> dict[str, int]:
        """The bytes of all files below a prefix, by their keys."""
        try:
            found: dict[str, Any] = self._files.find(self._path(prefix), detail=True)
        except FileNotFoundError:
            return {}
        return {str(path).removeprefix(f"{self._root}/"): int(info["size"]) for path, info in found.items()}

    def delete(self, key: str) -> None:
        """Deletes a file, if it exists."""
        try:
            self._files.rm_file(self._path(key))
        except FileNotFoundError:
            return

    def delete_all(self, prefix: str) -> None:
        """Deletes all files below a prefix, manifests first, so that no incomplete folder counts as complete."""
        for key in sorted(self.keys(prefix), key=lambda key: not key.endswith("manifest.json")):
            self.delete(key)

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"


@lru_cache(maxsize=1)
def _opened(url: str) -> ObjectStore:
    return ObjectStore(url)


def configured() -> ObjectStore | None:
    """The installation's object store; None without LATHE_STORE_URL. Raises UserError if the URL cannot be used."""
    url = get_settings().store_url
    return _opened(url) if url else None


JOURNAL_FILE = ".uploaded.json"
Entries = dict[str, dict[str, Any]]


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
    with scratch(folder) as beside:
        (beside / MANIFEST_FILE).write_bytes(content)
        store.upload(beside / MANIFEST_FILE, target)
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
            store.download(f"{key}/{name}", file, entry["sha256"])
    with whole_file(folder / MANIFEST_FILE) as part:
        part.write_bytes(content)
        sync(part)
    return True


def _entries(folder: Path) -> Entries:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(file.relative_to(folder)): {"bytes": file.stat().st_size, "sha256": sha256(file)} for file in files}
