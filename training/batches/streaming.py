"""Reads and tokenizes rows during training, for data that fits neither in memory nor, as tokens, on disk.

The rows of an epoch pass through a shuffle buffer, so that their order depends only on seed and epoch. The epochs follow one
another and are split into micro batches, which go to the ranks in turn. The step number therefore gives the place in the
stream, and a resumed run continues there: earlier rows are read but not tokenized. A row without loss tokens has its place, too,
which gets weight 0: without it, the rows after it would go to other ranks and steps on each split of the batch.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
from torch.utils.data import IterableDataset
from transformers import PreTrainedTokenizerBase

from training.batches.views import WEIGHTS, Tokens, labeled
from training.chat.rendering_settings import ChatSettings, with_row_weight
from training.config.run_config import RunConfig
from training.data.example import Example
from training.data.files.formats import file_format, open_bytes
from training.data.rows import DataFile, read_numbered
from training.errors import DataError
from training.tokens.encoding import Encoder
from training.tokens.rendering import Renderer

BUFFER_ROWS = 10_000
FORMATS = ("jsonl", "parquet")
_CHUNK_ROWS = 64  # tokenized together, one chunk ahead of training
_SHUFFLE = 3  # differs from the other random orders of a seed (training/tokens/order.py, training/tokens/selection.py)
_PLACES_PER_DRAW = 4096

T = TypeVar("T")


@dataclass(frozen=True)
class Share:
    """A rank's share of the stream: every `world`-th micro batch, beginning after `start_step` steps."""

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
    """Tokenizes rows of a file, truncated to the run's maximum length."""

    def __init__(self, source: DataFile, tokenizer: PreTrainedTokenizerBase, config: RunConfig) -> None:
        self._source, self._config, self._chat = source, config, ChatSettings.of(config)
        self._renderer, self._encoder = Renderer(tokenizer, self._chat), Encoder(tokenizer)

    def examples(self, first: int, end: int) -> Iterator[Example | None]:
        """Yields the rows [first, end) of the file, counted from 0; None for a row that cannot be trained on."""
        rows = islice(read_numbered(self._source.path, self._source.columns), first, end)
        return (example and with_row_weight(example, row, self._chat) for _, row, example in rows)

    def tokens(self, examples: Iterator[Example | None]) -> Iterator[Tokens | None]:
        """Yields each row as tokens and labels; None if no token carries loss. Tokenizes one chunk ahead in a thread."""
        with ThreadPoolExecutor(1) as pool:
            pending: deque[Future[list[Tokens | None]]] = deque()
            while chunk := list(islice(examples, _CHUNK_ROWS)):
                pending.append(pool.submit(self._tokenize, chunk))
                if len(pending) == 2:
                    yield from pending.popleft().result()
            for future in pending:
                yield from future.result()

    def _tokenize(self, examples: list[Example | None]) -> list[Tokens | None]:
        rendered = [self._renderer.render(example) if example else None for example in examples]
        encoded = self._encoder.collect(rendered, self._encoder.encode(rendered))
        ends = np.cumsum(encoded.lengths)
        limit, rows = self._config.max_length, list[Tokens | None]()
        for number, (end, length) in enumerate(zip(ends, encoded.lengths, strict=True)):
            weights = np.zeros(length, np.float32)
            spans_of_row = encoded.spans[:, 0] == number
            for (_, first, last), weight in zip(
                encoded.spans[spans_of_row], encoded.weights[spans_of_row], strict=True
            ):
                weights[first:last] = weight
            tokens, weights = encoded.tokens[end - length : end][:limit], weights[:limit]
            kept = weights if self._chat.weight_field else None
            row = labeled(tokens, weights > 0, train_on_prompt=self._config.train_on_prompt, weights=kept)
            rows.append(row if (row["labels"][1:] >= 0).any() else None)
        return rows


class Stream(IterableDataset[Tokens]):
    """An endless stream of a rank's share of the rows [first, end) of a file, in a new order in each epoch."""

    def __init__(
        self, reader: Reader, first: int, end: int, seed: int, share: Share, buffer_rows: int = BUFFER_ROWS
    ) -> None:
        self.share = share
        self.without_loss = 0
        """The places without loss tokens that this rank's current iterator has yielded."""
        self._reader, self._first, self._end, self._seed, self._buffer = reader, first, end, seed, buffer_rows

    @property
    def num_rows(self) -> int:
        """Rows of an epoch, including those without loss tokens."""
        return self._end - self._first

    def __iter__(self) -> Iterator[Tokens]:
        """Yields a row for each place: the row itself, or for one without loss tokens the next row that has some, with loss
        weights of 0."""
        self.without_loss = skipped = 0
        for row in self._reader.tokens(self._examples()):
            if row is None:
                skipped += 1
                if skipped > self.num_rows:
                    message = "leaves no row with loss tokens."
                    raise DataError(message, "Raise max_length.", field="max_length")
                continue
            for _ in range(skipped):
                self.without_loss += 1
                yield row | {WEIGHTS: np.zeros(len(row["labels"]), np.float32)}
            yield row
            skipped = 0

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
                message = f"had {rows:,} rows when the run began and has fewer now."
                raise DataError(message, "Restore the file, or start a new run.")


def with_loss(rows: list[Tokens]) -> list[Tokens]:
    """Returns the rows of a micro batch without those of weight 0; one of these if there are no others."""
    return [row for row in rows if WEIGHTS not in row or row[WEIGHTS].any()] or rows[:1]


def shuffled(items: Iterator[T], seed: int, epoch: int, size: int) -> Iterator[T]:
    """Yields the items in an order given by seed and epoch: each is drawn at random from a buffer of `size` items."""
    generator = np.random.Generator(np.random.PCG64([seed, epoch, _SHUFFLE]))
    buffer = list(islice(items, size))
    places: list[int] = []
    for item in items:
        if not places:
            places = generator.integers(size, size=_PLACES_PER_DRAW).tolist()
        place = places.pop()
        yield buffer[place]
        buffer[place] = item
    for place in generator.permutation(len(buffer)):
        yield buffer[place]


def count_rows(source: Path) -> int:
    """Counts the rows of a JSONL or Parquet file without parsing them. Raises DataError if the file has another format, which
    cannot be read row by row."""
    kind = file_format(source, source.name).removesuffix(".gz")
    if kind not in FORMATS:
        message = f"is {kind.upper()}, but streaming reads only JSONL and Parquet."
        raise DataError(message, "Save it as JSONL, or set streaming to false.", file=source.name, field="streaming")
    if kind == "parquet":
        from pyarrow import parquet

        return int(parquet.ParquetFile(source).metadata.num_rows)
    with open_bytes(source) as stream:
        return sum(1 for line in stream if not line.isspace())
