"""Where a rank stands within a step, and which rows all ranks have there: kept for the case that its memory runs out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from training.config import RunConfig
from training.data import TokenList
from training.order import Order, Shuffled, batches_of_ranks
from training.streaming import Stream
from training.views import View, file_rows

Rows = list[dict[str, Any]]
"""Of every rank: `rank`, `rows` (of the file, from 1) and `tokens` (of each row)."""


@dataclass(frozen=True)
class Moment:
    """A micro step of a step, both from 1; in an evaluation its batch. `batches` finds the rows of all ranks when asked.

    `tensors` describes the rank's batch without keeping it: name, shape, dtype and bytes of each.
    """

    step: int
    micro_step: int
    tensors: list[dict[str, Any]]
    batches: Callable[[], Rows]


class Moments:
    """Follows a rank through its steps and evaluations."""

    def __init__(
        self, config: RunConfig, train: View | Stream, held_out: View | TokenList | None, order: Order | None
    ) -> None:
        self.now: Moment | None = None
        self._config, self._train, self._held_out = config, train, held_out
        self.order = order
        self._micro_step = 0

    @property
    def rows(self) -> View | None:
        """The rows to train on, where they can be looked up."""
        return None if isinstance(self._train, Stream) else self._train

    def begin(self) -> None:
        """A step or an evaluation begins."""
        self._micro_step = 0

    def train(self, step: int, inputs: Mapping[str, Any]) -> None:
        """The next micro step of a step, from 1."""
        self._mark(step, inputs, self._training_rows)

    def evaluate(self, step: int, inputs: Mapping[str, Any]) -> None:
        """The next batch of an evaluation after `step`."""
        self._mark(step, inputs, self._held_out_rows)

    def probe(self, inputs: Mapping[str, Any], rows: list[int]) -> None:
        """Before the first step, the same rows on every rank."""
        world = self._config.num_processes // self._config.sequence_parallel_size
        view = self.rows
        self._mark(0, inputs, lambda *_: self._of_ranks(view, [rows] * world) if view else [])

    def _mark(self, step: int, inputs: Mapping[str, Any], rows: Callable[[int, int], Rows]) -> None:
        self._micro_step += 1
        micro_step = self._micro_step
        self.now = Moment(step, micro_step, described(inputs), lambda: rows(step, micro_step))

    def _training_rows(self, step: int, micro_step: int) -> Rows:
        if isinstance(self._train, Stream):
            return []  # its rows are drawn while it is read
        config = self._config
        found = batches_of_ranks(
            self.order or Shuffled(self._train.num_rows, config.seed),
            step=step,
            micro=micro_step,
            micro_batch=config.micro_batch_size,
            accumulation=config.gradient_accumulation_steps,
            world=config.num_processes // config.sequence_parallel_size,
        )
        return self._of_ranks(self._train, found)

    def _held_out_rows(self, _: int, batch: int) -> Rows:
        """Held-out rows come as they stand, batch after batch to rank after rank."""
        rows, size = self._held_out, self._config.micro_batch_size
        if rows is None or isinstance(rows, TokenList):
            return []
        world = self._config.num_processes // self._config.sequence_parallel_size
        starts = [((batch - 1) * world + rank) * size for rank in range(world)]
        return self._of_ranks(rows, [list(range(start, min(start + size, rows.num_rows))) for start in starts])

    def _of_ranks(self, view: View, batches: Sequence[list[int]]) -> Rows:
        lengths, shared = view.lengths, self._config.sequence_parallel_size
        return [
            {"rank": rank, "rows": file_rows(view, batch), "tokens": [int(lengths[row]) for row in batch]}
            for rank in range(self._config.num_processes)
            for batch in [batches[rank // shared]]
        ]


def described(inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tensors of a batch by name, shape, dtype and bytes."""
    return [
        {
            "name": name,
            "shape": list(value.shape),
            "dtype": str(value.dtype).removeprefix("torch."),
            "bytes": value.nbytes,
        }
        for name, value in inputs.items()
        if isinstance(value, torch.Tensor)
    ]
