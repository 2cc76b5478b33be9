"""Rows read and tokenized while training runs, for data larger than memory or than the disk has room for as tokens.

The rows of an epoch pass through a buffer from which each is drawn at random by the seed, so that their order hangs on seed
and epoch alone. The orders of all epochs, one behind another, are cut into micro batches that go to the ranks in turn. A step
therefore knows at which place its rows stand, and a resumed run goes on there: what lies before is read and not tokenized.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from math import ceil
from pathlib import Path
from typing import TypeVar

import numpy as np
from torch.utils.data import IterableDataset
from transformers import PreTrainedTokenizerBase

from training.data import Tokens, labelled
from training.encoding import Encoder
from training.example import Example
from training.failure import DataError
from training.files import file_format, open_bytes
from training.methods import template_arguments
from training.rendering import Renderer
from training.rows import read_numbered

BUFFER_ROWS = 10_000
FORMATS = ("jsonl", "parquet")
_CHUNK_ROWS = 64  # tokenized together, one chunk ahead of the training
_SHUFFLE = 3  # a number apart from the other orders of a seed (training/order.py, training/selection.py)
_DRAWN_TOGETHER = 4096

T = TypeVar("T")


@dataclass(frozen=True)
class Share:
    """What a rank takes of the stream: every `world`-th micro batch, from the step `start_step` on (0: the beginning)."""

    rank: int
    world: int
    micro_batch: int
    accumulation: int
    start_step: int = 0

    @property
    def start(self) -> int:
        """The place in the stream at which the rank's next step begins."""
        return self.start_step * self.micro_batch * self.accumulation * self.world

    def takes(self, place: int) -> bool:
        return place >= self.start and place // self.micro_batch % self.world == self.rank


class Reader:
    """Turns rows of a file into tokens, cut to a maximum length."""

    def __init__(
        self,
        source: Path,
        columns: str | None,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        *,
        train_on_prompt: bool,
        template_kwargs: str | None = None,
    ) -> None:
        self._source, self._columns, self._limit, self._all = source, columns, max_length, train_on_prompt
        self._renderer, self._encoder = Renderer(tokenizer, template_arguments(template_kwargs)), Encoder(tokenizer)

    def examples(self, first: int, end: int) -> Iterator[Example | None]:
        """The rows [first, end) of the file, from 0; None for one that cannot train."""
        return (example for _, _, example in islice(read_numbered(self._source, self._columns), first, end))

    def tokens(self, examples: Iterator[Example | None]) -> Iterator[Tokens | None]:
        """Each row as tokens and labels; None where nothing of it carries loss. One chunk ahead of who asks."""
        with ThreadPoolExecutor(1) as pool:
            waiting: deque[Future[list[Tokens | None]]] = deque()
            while chunk := list(islice(examples, _CHUNK_ROWS)):
                waiting.append(pool.submit(self._tokenize, chunk))
                if len(waiting) == 2:
                    yield from waiting.popleft().result()
            for coming in waiting:
                yield from coming.result()

    def _tokenize(self, examples: list[Example | None]) -> list[Tokens | None]:
        rendered = [self._renderer.render(example) if example else None for example in examples]
        encoded = self._encoder.collect(rendered, self._encoder.encode(rendered))
        ends = np.cumsum(encoded.lengths)
        rows: list[Tokens | None] = []
        for number, (end, length) in enumerate(zip(ends, encoded.lengths, strict=True)):
            trained = np.zeros(length, bool)
            for _, first, last in encoded.spans[encoded.spans[:, 0] == number]:
                trained[first:last] = True
            tokens = encoded.tokens[end - length : end]
            row = labelled(tokens[: self._limit], trained[: self._limit], train_on_prompt=self._all)
            rows.append(row if (row["labels"][1:] >= 0).any() else None)
        return rows


class Stream(IterableDataset[Tokens]):
    """The rows [first, end) of a file over and over, a new order each time: a rank's share of them, without end."""

    def __init__(
        self, reader: Reader, first: int, end: int, seed: int, share: Share, buffer_rows: int = BUFFER_ROWS
    ) -> None:
        self.share = share
        self._reader, self._first, self._end, self._seed, self._buffer = reader, first, end, seed, buffer_rows

    @property
    def num_rows(self) -> int:
        """Rows of a pass, those among them that teach nothing."""
        return self._end - self._first

    def __iter__(self) -> Iterator[Tokens]:
        """A row that teaches nothing gives its place to the next of this rank that does, so that every batch is full."""
        missing = barren = 0
        for row in self._reader.tokens(self._examples()):
            if row is None:
                missing, barren = missing + 1, barren + 1
                if barren > self.num_rows:
                    message = "has no row with an answer left within max_length."
                    raise DataError(message, "Raise max_length.", field="max_length")
                continue
            for _ in range(missing + 1):
                yield row
            missing = barren = 0

    def _examples(self) -> Iterator[Example | None]:
        rows = self.num_rows
        epoch = self.share.start // rows
        place = epoch * rows
        while True:
            for example in shuffled(self._reader.examples(self._first, self._end), self._seed, epoch, self._buffer):
                if self.share.takes(place):
                    yield example
                place += 1
            epoch += 1
            if place != epoch * rows:
                message = f"held {rows:,} rows when the run began and ends before them."
                raise DataError(message, "Put the file back as it was, or start a new run.")


def shuffled(items: Iterator[T], seed: int, epoch: int, size: int) -> Iterator[T]:
    """The items in an order by seed and epoch: each drawn from the `size` that were read and not drawn yet."""
    generator = np.random.Generator(np.random.PCG64([seed, epoch, _SHUFFLE]))
    buffer = list(islice(items, size))
    places: list[int] = []
    for item in items:
        if not places:
            places = generator.integers(size, size=_DRAWN_TOGETHER).tolist()
        place = places.pop()
        yield buffer[place]
        buffer[place] = item
    for place in generator.permutation(len(buffer)):
        yield buffer[place]


def count_rows(source: Path) -> int:
    """The rows of a JSONL or Parquet file, without parsing them.

    Raises:
        DataError: it is of another format, which cannot be read a row at a time.
    """
    kind = file_format(source, source.name).removesuffix(".gz")
    if kind not in FORMATS:
        message = f"is {kind.upper()}, and streaming reads JSONL and Parquet."
        raise DataError(message, "Save it as JSONL, or set streaming to false.", file=source.name, field="streaming")
    if kind == "parquet":
        from pyarrow import parquet

        return int(parquet.ParquetFile(source).metadata.num_rows)
    with open_bytes(source) as stream:
        return sum(1 for line in stream if not line.isspace())


def steps(rows: int, epochs: float, global_batch: int) -> int:
    """Optimizer steps of so many passes over a stream, whose last batch of a pass is filled from the next."""
    return max(1, ceil(epochs * rows / global_batch))
