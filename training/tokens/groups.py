"""Groups of rows that a split does not divide: near duplicates, or rows with the same value of a column.

Near duplicates have nearly the same tokens, or if they are short nearly the same text. A store has the groups of its own rows from
the start. Those of several data sets together are computed from their stores, and kept in a file of the first one: the ranks of a
run and its forecast read the same.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.tokens.alike_texts import LONGEST, Texts, alike_pairs
from training.tokens.duplicates import Signatures, exact_duplicates, similar_pairs
from training.tokens.order import Integers
from training.tokens.store import GROUPS, TOKENIZER, Store, TokenStore, locked, making_folder, parts_of

_CHUNK_ROWS = 1000
Progress = Callable[[int, int], None]


def groups_of_values(values: Iterable[str]) -> Integers:
    """Of each row the first row with the same value; a row with an empty value is a group by itself."""
    first: dict[str, int] = {}
    return np.array([first.setdefault(value, row) if value else row for row, value in enumerate(values)], np.int64)


def known_near_groups(store: Store) -> Integers | None:
    """What `near_groups` returned for these stores; None if it was never called for them."""
    try:
        groups = np.fromfile(_file(parts_of(store)), np.int32)
    except OSError:
        return None
    return groups.astype(np.int64) if len(groups) == store.rows else None


def near_groups(store: Store, progress: Progress | None = None) -> Integers:
    """Of each row the first row of its group: rows that are equal or near duplicates, directly or through other rows.

    `progress` receives the rows done and all rows, also while another process computes the same.
    """
    known = known_near_groups(store)
    if known is not None:
        return known
    report = progress or (lambda _done, _total: None)
    with locked(parts_of(store)[0].folder, waiting=lambda: report(0, store.rows)):
        known = known_near_groups(store)
        if known is None:
            known = _computed(store, report)
            _write(_file(parts_of(store)), known)
    return known


class Compared:
    """Writes what is compared of rows to files in `folder`, chunk by chunk, and finds their groups."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._signatures, self._texts = Signatures(folder), Texts(folder / "texts")

    def add(self, tokens: NDArray[np.int32], lengths: Integers, texts: Sequence[str]) -> None:
        """Adds the rows of a chunk; `tokens` are those of all its rows, concatenated, `texts` what they say."""
        self._signatures.add(tokens, lengths)
        self._texts.add([text if length <= LONGEST else "" for text, length in zip(texts, lengths, strict=True)])

    def groups(self, exact: NDArray[np.int32]) -> Integers:
        """Of each row the first row of its group. `exact` are the rows that each equals, as `exact_duplicates` returns them."""
        self.close()
        groups = _Groups(exact)
        for rows, others in similar_pairs(self._folder, exact, groups.differ):
            groups.join(rows, others)
        for rows, others in alike_pairs(self._folder / "texts", len(exact), groups.differ):
            groups.join(rows, others)
        return groups.heads()

    def close(self) -> None:
        self._signatures.close()
        self._texts.close()


def write_groups(folder: Path, groups: Integers) -> None:
    """Keeps the groups of a store's rows in its folder."""
    _write(folder / GROUPS, groups)


def _computed(store: Store, report: Progress) -> Integers:
    scratch = making_folder(parts_of(store)[0].folder)  # what a killed process leaves there is removed
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(mode=0o700)
    try:
        with closing(Compared(scratch)) as compared:
            done = 0
            for part in parts_of(store):
                for start in range(0, part.rows, _CHUNK_ROWS):
                    tokens, lengths = part.tokens_between(start, start + _CHUNK_ROWS)
                    compared.add(tokens, lengths, _texts(part, tokens, lengths))
                    done += len(lengths)
                    report(done, store.rows)
            return compared.groups(exact_duplicates(store.hashes))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _texts(store: TokenStore, tokens: NDArray[np.int32], lengths: Integers) -> list[str]:
    """What short rows say; of long ones an empty text."""
    from tokenizers import Tokenizer

    tokenizer, ends = Tokenizer.from_file(str(store.folder / TOKENIZER)), np.cumsum(lengths)
    rows = [
        tokens[end - length : end].tolist() if length <= LONGEST else []
        for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)
    ]
    return list(tokenizer.decode_batch(rows, skip_special_tokens=False))


class _Groups:
    """Groups of rows, at first of equal rows; each row points to an earlier one of its group, the first one to itself."""

    def __init__(self, exact: NDArray[np.int32]) -> None:
        self._heads = np.where(exact < 0, np.arange(len(exact)), exact).astype(np.int64)

    def heads(self) -> Integers:
        """The first row of each row's group."""
        while (self._heads[self._heads] != self._heads).any():
            self._heads = self._heads[self._heads]
        return self._heads

    def differ(self, rows: Integers, others: Integers) -> NDArray[np.bool_]:
        """A mask of the pairs that are not known to be of one group."""
        heads = self.heads()
        mask: NDArray[np.bool_] = heads[rows] != heads[others]
        return mask

    def join(self, rows: Integers, others: Integers) -> None:
        for row, other in zip(rows.tolist(), others.tolist(), strict=True):
            one, another = self._head(row), self._head(other)
            self._heads[max(one, another)] = min(one, another)

    def _head(self, row: int) -> int:
        while (head := int(self._heads[row])) != row:
            row = head
        return row


def _file(stores: Sequence[TokenStore]) -> Path:
    if len(stores) == 1:
        return stores[0].folder / GROUPS
    names = "\n".join(store.folder.name for store in stores)
    return stores[0].folder / f"groups-{hashlib.sha256(names.encode()).hexdigest()[:16]}.i32"


def _write(file: Path, groups: Integers) -> None:
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    groups.astype(np.int32).tofile(temporary)
    temporary.rename(file)
