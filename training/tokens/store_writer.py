"""Writes a token store chunk by chunk, then its facts. Memory depends on the chunk size, not on the data set."""

import json
import os
import shutil
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from training.tokens import lengths as numbers
from training.tokens.coverage import Gap, GapCounts, Missing
from training.tokens.duplicates import exact_duplicates, row_hashes
from training.tokens.encoding import Encoded
from training.tokens.groups import Compared, write_groups
from training.tokens.order import Integers
from training.tokens.rendered import Rendered
from training.tokens.store import FACTS, GROUPS, TOKENIZER, VERSION, WEIGHTS

_BLOCKS: dict[str, list[list[int]]] = tomllib.loads(
    Path(__file__).with_name("scripts.toml").read_text(encoding="utf-8")
)
NO_SCRIPT = "Digits and signs"
SCRIPTS = [NO_SCRIPT, *_BLOCKS]
EXAMPLES = 20
_FILES = ("tokens.i32", "ends.i64", "spans.i32", "first_trained.i32", "hashes.u64")


def _table() -> NDArray[np.uint8]:
    table = np.zeros(0x110000, np.uint8)
    for number, blocks in enumerate(_BLOCKS.values(), 1):
        for first, last in blocks:
            table[first : last + 1] = number
    return table


_TABLE = _table()


def main_scripts(texts: Sequence[str]) -> Integers:
    """The most frequent script (an index into SCRIPTS) of each text."""
    sizes = np.fromiter((len(text) for text in texts), np.intp, len(texts))
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    rows = np.repeat(np.arange(len(texts)), sizes)
    cells = rows * len(SCRIPTS) + _TABLE[codes]
    counts = np.bincount(cells, minlength=len(texts) * len(SCRIPTS)).reshape(len(texts), len(SCRIPTS))
    counts[:, 0] = 0  # ignores digits and signs; a text of these only has index 0
    main: Integers = counts.argmax(axis=1)
    return main


class StoreWriter:
    """Writes the files of a new store to `folder`."""

    def __init__(
        self, folder: Path, tokenizer: PreTrainedTokenizerBase, gaps: GapCounts, *, weighted: bool = False
    ) -> None:
        """`gaps` are those of the rows' texts; `weighted`: the rows have loss weights, which are stored too."""
        self.rows = self.trainable = 0
        self._folder, self._tokenizer, self._gaps = folder, tokenizer, gaps
        self._files: dict[str, BinaryIO] = {
            name: (folder / name).open("wb") for name in (*_FILES, *([WEIGHTS] if weighted else []))
        }
        self._scratch = folder / "scratch"
        self._scratch.mkdir()
        self._compared = Compared(self._scratch)
        self._empty_rows: list[int] = []
        self._tokens = self._unknown = 0
        self._scripts = np.zeros((len(SCRIPTS), 4), np.int64)  # rows, characters, tokens, unknown tokens

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()
        self._compared.close()

    def add(self, rendered: Sequence[Rendered | None], encoded: Encoded) -> None:
        """Adds the next rows of the file; a row that cannot train is None and has no tokens."""
        empty = [self.rows + index for index, row in enumerate(rendered) if row is None]
        self._empty_rows += empty[: EXAMPLES - len(self._empty_rows)]
        spans = encoded.spans.copy()
        spans[:, 0] += self.rows
        written = {
            "tokens.i32": encoded.tokens,
            "ends.i64": self._tokens + np.cumsum(encoded.lengths, dtype=np.int64),
            "spans.i32": spans,
            "first_trained.i32": encoded.first_trained,
            "hashes.u64": row_hashes(encoded.tokens, encoded.lengths),
        }
        if WEIGHTS in self._files:
            written[WEIGHTS] = encoded.weights
        for name, array in written.items():
            self._files[name].write(np.ascontiguousarray(array).data)
        self._compared.add(encoded.tokens, encoded.lengths, [row.text if row else "" for row in rendered])
        self._count_scripts(rendered, encoded)
        self._find_lost_spans(rendered, encoded)
        self.rows += len(rendered)
        self.trainable += len(rendered) - len(empty)
        self._tokens += len(encoded.tokens)

    def finish(self) -> None:
        """Finds duplicates, writes the facts, and syncs all files to disk."""
        for file in self._files.values():
            file.flush()
        exact = exact_duplicates(np.fromfile(self._folder / "hashes.u64", np.uint64))
        groups = self._compared.groups(exact)
        shutil.rmtree(self._scratch)
        write_groups(self._folder, groups)
        near = np.where((groups != np.arange(len(groups))) & (exact < 0), groups, -1)
        self._tokenizer.backend_tokenizer.save(str(self._folder / TOKENIZER))
        facts = self._facts() | _pairs("duplicate", exact) | _pairs("near_duplicate", near)
        facts["bytes"] = {name: (self._folder / name).stat().st_size for name in (*self._files, GROUPS, TOKENIZER)}
        (self._folder / FACTS).write_text(json.dumps(facts), encoding="utf-8")
        for path in self._folder.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())

    def _facts(self) -> dict[str, Any]:
        ends = np.fromfile(self._folder / "ends.i64", np.int64)
        lengths = np.diff(ends, prepend=0).astype(np.int32)
        first = np.fromfile(self._folder / "first_trained.i32", np.int32)
        tokens = numbers.summary(lengths)
        return {
            "version": VERSION,
            "rows": self.rows,
            "empty_rows": self.rows - self.trainable,
            "empty_examples": self._empty_rows,
            "tokens": tokens,
            "longest_rows": numbers.longest_rows(lengths),
            "untrained_at": numbers.untrained_by_limit(first, lengths, numbers.usual_limits(tokens["max"])),
            "histogram": numbers.histogram(lengths),
            "cut_offs": numbers.cut_offs(lengths, first),
            "scripts": self._script_facts(),
            "special_ids": sorted(self._tokenizer.all_special_ids),
            "gaps": self._gaps.as_json(),
        }

    def _find_lost_spans(self, rendered: Sequence[Rendered | None], encoded: Encoded) -> None:
        """Counts the rows with an answer whose text has loss and none of whose tokens does."""
        spans = np.bincount(encoded.spans[:, 0], minlength=len(rendered))
        for index, row in enumerate(rendered):
            if row and spans[index] < len(row.spans) and spans[index] < sum(start < end for start, end in row.spans):
                self._gaps.add(self.rows + index + 1, [Missing(Gap.NO_LOSS, "one of its answers")])

    def _count_scripts(self, rendered: Sequence[Rendered | None], encoded: Encoded) -> None:
        unknown = np.zeros(len(rendered), np.int64)
        # Byte-level tokenizers have no unknown tokens; some declare their end token as the unknown token.
        token = self._tokenizer.unk_token_id
        if token is not None and token != self._tokenizer.eos_token_id:
            sums = np.concatenate([[0], np.cumsum(encoded.tokens == token)])
            ends = np.cumsum(encoded.lengths)
            unknown = sums[ends] - sums[ends - encoded.lengths]
        texts = [row.text if row else "" for row in rendered]
        characters = np.fromiter((len(text) for text in texts), np.int64, len(texts))
        scripts = main_scripts(texts)
        for column, weights in enumerate((encoded.lengths > 0, characters, encoded.lengths, unknown)):
            sums = np.bincount(scripts, weights, minlength=len(SCRIPTS))
            self._scripts[:, column] += sums.astype(np.int64)

    def _script_facts(self) -> list[dict[str, Any]]:
        facts = []
        for name, (rows, characters, tokens, unknown) in zip(SCRIPTS, self._scripts.tolist(), strict=True):
            if rows:
                rate = tokens / characters if characters else 0.0
                counts = {"rows": rows, "share": rows / self.trainable, "characters": characters, "tokens": tokens}
                facts.append({"script": name, **counts, "tokens_per_character": rate, "unknown_tokens": unknown})
        return sorted(facts, key=lambda script: -script["rows"])


def _pairs(name: str, earlier: Any) -> dict[str, Any]:
    """The number of duplicate rows, and the first pairs (row, earlier row), from 0."""
    rows = np.flatnonzero(earlier >= 0)
    examples = [[int(row), int(earlier[row])] for row in rows[:EXAMPLES]]
    return {f"{name}_rows": len(rows), f"{name}_examples": examples}
