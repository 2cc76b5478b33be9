"""The token stores of data sets: all rows' tokens, untruncated, and which carry loss. Arrays are mapped from disk; only numpy.

A store is a folder whose name is a hash of its inputs (`store_key`): the data's bytes, the tokenizer with its chat template, and
the column mapping. It is written to another folder under a lock and renamed, so that it is always complete and no two processes
make the same one. Maximum length and `train_on_prompt` are applied when reading.

    tokens.i32          the tokens of all rows, one after another
    ends.i64            where each row's tokens end; a row that cannot train has no tokens
    spans.i32           (row, first, end): the tokens [first, end) of a row carry loss; in the order of the rows
    weights.f32         the loss weight of each span; absent if no row has weights
    first_trained.i32   a row's first token with loss, except token 0 (it has no predecessor), or -1
    hashes.u64          a hash of each row's tokens (0: no tokens), to compare two data sets
    groups.i32          the first row of each row's group of near duplicates (groups.py)
    tokenizer.json      what decodes the tokens
    facts.json          statistics that do not depend on a limit, written last
"""

import fcntl
import hashlib
import json
import os
import shutil
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.files import first_blocks
from training.model_info.config_json import local_folder
from training.tokens.order import Integers

# The folder of the stores that all runs share; without it a run uses its own folder.
VARIABLE = "LATHE_TOKENS"
VERSION = 5  # of the layout, the rendering of rows and what near duplicates are; a new version makes all stores again
FACTS = "facts.json"
PROGRESS = "progress.json"
WEIGHTS = "weights.f32"
TOKENIZER = "tokenizer.json"
GROUPS = "groups.i32"
_TOKENIZER_FILES = ("tokenizer*", "*.jinja", "chat_template*", "special_tokens_map.json", "added_tokens.json")
_MOST_HASHED = 256 * 2**20
"""Bytes of a file of a tokenizer; the longest real ones have 40 MB."""
_VOCABULARY_FILES = ("vocab*", "merges*", "*.model", "*.tiktoken", "config.json", "generation_config.json")


@dataclass(frozen=True)
class TokenStore:
    """A complete store. Arrays have an entry for every row of the file, in its order."""

    folder: Path

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The statistics that `training.tokens.make_store` wrote."""
        values: dict[str, Any] = json.loads((self.folder / FACTS).read_text(encoding="utf-8"))
        return values

    @property
    def rows(self) -> int:
        """The number of rows of the file, including those that cannot train."""
        return int(self.facts["rows"])

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        """Tokens of each row, untruncated; 0 for a row that cannot train."""
        return np.diff(self._ends, prepend=0).astype(np.int32)

    @cached_property
    def first_trained(self) -> NDArray[np.int32]:
        return self._map("first_trained.i32", np.int32)

    @cached_property
    def hashes(self) -> NDArray[np.uint64]:
        return self._map("hashes.u64", np.uint64)

    def tokens_between(self, start: int, end: int) -> tuple[NDArray[np.int32], Integers]:
        """The tokens of the rows [start, end), one after another, and the number of each row's."""
        first, last = self._bounds(start)[0], self._bounds(min(end, self.rows) - 1)[1]
        return self._tokens[first:last], self.lengths[start:end]

    def first_trained_with(self, *, train_on_prompt: bool) -> Integers:
        """`first_trained`; with `train_on_prompt` the prompt's tokens carry loss too."""
        return np.where(self.lengths > 1, 1, -1) if train_on_prompt else self.first_trained

    def row(self, number: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """The tokens of a row (from 0) and which of them carry loss, untruncated."""
        start, end = self._bounds(number)
        trained = np.zeros(end - start, bool)
        low = bisect_left(self._span_rows, number)  # np.searchsorted would first copy all row numbers
        high = bisect_right(self._span_rows, number, low, min(low + end - start, len(self._spans)))
        for _, first, last in self._spans[low:high]:
            trained[first:last] = True
        return self._tokens[start:end], trained

    def weights_of(self, number: int) -> NDArray[np.float32] | None:
        """The loss weight of each token of a row (from 0), 0 without loss; None if the store has no weights."""
        if self._weights is None:
            return None
        start, end = self._bounds(number)
        weights = np.zeros(end - start, np.float32)
        low, high = bisect_left(self._span_rows, number), bisect_right(self._span_rows, number)
        for (_, first, last), weight in zip(self._spans[low:high], self._weights[low:high], strict=True):
            weights[first:last] = weight
        return weights

    def trained_beyond(self, limit: int) -> Integers:
        """The number of loss tokens beyond `limit` in each row."""
        lost = np.maximum(self._spans[:, 2] - np.maximum(self._spans[:, 1], limit), 0)
        return np.bincount(self._span_rows, lost, minlength=len(self.lengths)).astype(np.int32)

    def _bounds(self, number: int) -> tuple[int, int]:
        """Where the tokens of a row begin and end."""
        return (int(self._ends[number - 1]) if number else 0), int(self._ends[number])

    @cached_property
    def _tokens(self) -> NDArray[np.int32]:
        return self._map("tokens.i32", np.int32)

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return self._map("ends.i64", np.int64)

    @cached_property
    def _spans(self) -> NDArray[np.int32]:
        return self._map("spans.i32", np.int32).reshape(-1, 3)

    @cached_property
    def _weights(self) -> NDArray[np.float32] | None:
        return self._map(WEIGHTS, np.float32) if (self.folder / WEIGHTS).is_file() else None

    @cached_property
    def _span_rows(self) -> Integers:
        return self._spans[:, 0]

    def _map(self, name: str, kind: type[Any]) -> NDArray[Any]:
        path = self.folder / name
        # A plain array: indexing a memmap is ten times slower.
        return np.asarray(np.memmap(path, kind, mode="r")) if path.stat().st_size else np.empty(0, kind)


class JoinedStore:
    """Several stores with the interface of one: rows are numbered through. `ends` are the row numbers at which each ends."""

    def __init__(self, stores: Sequence[TokenStore]) -> None:
        self.stores = tuple(stores)
        self.ends = np.cumsum([store.rows for store in stores])

    @property
    def rows(self) -> int:
        return int(self.ends[-1])

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The statistics that add up over the stores."""
        return {name: sum(int(store.facts[name]) for store in self.stores) for name in ("rows", "empty_rows")}

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        return np.concatenate([store.lengths for store in self.stores])

    @cached_property
    def first_trained(self) -> NDArray[np.int32]:
        return np.concatenate([store.first_trained for store in self.stores])

    @cached_property
    def hashes(self) -> NDArray[np.uint64]:
        return np.concatenate([store.hashes for store in self.stores])

    def first_trained_with(self, *, train_on_prompt: bool) -> Integers:
        return np.concatenate([store.first_trained_with(train_on_prompt=train_on_prompt) for store in self.stores])

    def row(self, number: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        store, row = self._place(number)
        return store.row(row)

    def weights_of(self, number: int) -> NDArray[np.float32] | None:
        store, row = self._place(number)
        return store.weights_of(row)

    def _place(self, number: int) -> tuple[TokenStore, int]:
        """The store of a row, and the row's number in it."""
        place = int(np.searchsorted(self.ends, number, side="right"))
        return self.stores[place], number - (int(self.ends[place - 1]) if place else 0)


Store = TokenStore | JoinedStore


def joined(stores: Sequence[TokenStore]) -> Store:
    """The store of one data set, or those of several as one."""
    return stores[0] if len(stores) == 1 else JoinedStore(stores)


def parts_of(store: Store) -> tuple[TokenStore, ...]:
    """The stores of the data sets of a store."""
    return store.stores if isinstance(store, JoinedStore) else (store,)


def ends_of(store: Store) -> tuple[int, ...]:
    """The row numbers at which each data set of a store ends."""
    return tuple(int(end) for end in store.ends) if isinstance(store, JoinedStore) else (store.rows,)


def is_whole(folder: Path) -> bool:
    """True if `folder` has a store whose files have the sizes that they were written with. Without one, or where a disk has lost
    a part, the store is made again."""
    try:
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        return all((folder / name).stat().st_size == size for name, size in facts["bytes"].items())
    except (OSError, ValueError, KeyError):
        return False


def open_store(folder: Path) -> TokenStore:
    """The store in `folder`. Raises FileNotFoundError if there is none, or it is not whole."""
    if not is_whole(folder):
        raise FileNotFoundError(f"{folder} has no tokens")
    os.utime(folder)  # the least recently used store is removed first
    return TokenStore(folder)


def store_key(
    sha256: str,
    model: str,
    columns: str | None,
    revision: str | None = None,
    part: str = "",
    chat: str = "",
) -> str:
    """The name of a store's folder: the start of the data's hash, then a hash of all inputs.

    `part` is a `StoredText` (parts.py), `chat` the key of the `ChatSettings`.
    """
    more = [part, chat] if chat else [part] if part else []
    parts = [str(VERSION), sha256, tokenizer_fingerprint(model, revision), columns or "", *more]
    return f"{sha256[:16]}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]}"


def tokenizer_fingerprint(model: str, revision: str | None = None) -> str:
    """A hash of a local model's tokenizer files and chat template; for a hub model, its id and revision."""
    folder = local_folder(model)
    if folder is None:
        return f"{model}@{revision or 'main'}"
    digest = hashlib.sha256()
    names = {path for pattern in (*_TOKENIZER_FILES, *_VOCABULARY_FILES) for path in folder.glob(pattern)}
    for path in sorted(name for name in names if name.is_file()):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        for block in first_blocks(path, _MOST_HASHED):
            digest.update(block)
    return digest.hexdigest()


def lock_file(folder: Path) -> Path:
    """The file that the process making the store `folder` locks."""
    return folder.with_name(f"{folder.name}.lock")


def use_file(folder: Path) -> Path:
    """The file on which readers of the store `folder` hold a shared lock."""
    return folder.with_name(f"{folder.name}.use")


def making_folder(folder: Path) -> Path:
    """The temporary folder of the store `folder`."""
    return folder.with_name(f".making-{folder.name}")


def is_being_made(folder: Path) -> bool:
    """True while a process makes this store."""
    try:
        with lock_file(folder).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextmanager
def locked(folder: Path, waiting: Any = None, seconds: float = 0.2) -> Iterator[None]:
    """Locks the store for making it; calls `waiting()` every `seconds` while another process holds the lock."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with lock_file(folder).open("ab") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if waiting:
                    waiting()
                time.sleep(seconds)
        yield


def in_use(folder: Path) -> int:
    """A file descriptor that prevents the removal of the store until it is closed or the process ends."""
    descriptor = os.open(use_file(folder), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def remove(folder: Path) -> bool:
    """Deletes a store unless a process makes or uses it; True if it was deleted."""
    try:
        with lock_file(folder).open("ab") as lock, use_file(folder).open("ab") as use:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(use, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(making_folder(folder), ignore_errors=True)
    except BlockingIOError:
        return False
    return True
