"""Files under keys in an object store, or in a folder, by a URL of fsspec: s3://bucket/prefix, gs://..., file:///mnt/lathe."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from training.errors import UserError
from worker.settings import PREFIX, get_settings


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

    def download(self, key: str, file: Path) -> None:
        """Downloads a file, completely or not at all."""
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f".{file.name}.part")
        try:
            self._files.get_file(self._path(key), str(part))
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)

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
    """The installation's object store; None without LATHE_STORE_URL.

    Raises:
        UserError: the URL cannot be used.
    """
    url = get_settings().store_url
    return _opened(url) if url else None
