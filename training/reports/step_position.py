"""Tracks the current micro step and the rows of all ranks in it, for out-of-memory reports."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from training.batches.sets import HeldOutBatches, Sets
from training.batches.streaming import Stream
from training.batches.views import TokenList, View, rows_behind
from training.config.run_config import RunConfig
from training.data.rows import DataRows
from training.tokens.order import Order, Shuffled, batches_of_ranks

Rows = list[dict[str, Any]]
"""One entry per rank: `rank`, `rows` (of the file, from 1), `tokens` (of each row), and of several files `sets` (their names)."""


@dataclass(frozen=True)
class StepPosition:
    """A micro step of an optimizer step, both counted from 1; in an evaluation `micro_step` is the batch.

    `tensors` describes the rank's batch: name, shape, dtype and bytes of each tensor. `batches` looks up the rows of all ranks.
    """

    step: int
    micro_step: int
    tensors: list[dict[str, Any]]
    batches: Callable[[], Rows]


class StepTracker:
    """Tracks a rank's position in training steps and evaluations; `now` is the current one."""

    def __init__(
        self,
        config: RunConfig,
        train: tuple[View | Stream, DataRows],
        held_out: tuple[View | TokenList | None, DataRows],
        order: Order | None,
        held_out_sets: Sets | None,
    ) -> None:
        self.now: StepPosition | None = None
        self._config = config
        self._train, self._numbered = train
        self._held_out, self._held_out_numbered = held_out
        self.order, self._held_out_sets = order, held_out_sets
        self._micro_step = 0

    @property
    def rows(self) -> View | None:
        """The training rows, or None for a stream, whose rows have no index."""
        return None if isinstance(self._train, Stream) else self._train

    def begin(self) -> None:
        """Starts a step or an evaluation."""
        self._micro_step = 0

    def train(self, step: int, inputs: Mapping[str, Any]) -> None:
        """Moves to the next micro step of an optimizer step, counted from 1."""
        self._move(step, inputs, self._training_rows)

    def evaluate(self, step: int, inputs: Mapping[str, Any]) -> None:
        """Moves to the next batch of the evaluation after `step`."""
        self._move(step, inputs, self._held_out_rows)

    def probe(self, inputs: Mapping[str, Any], rows: list[int]) -> None:
        """Moves to a micro step of the probe, with the same rows on every rank."""
        view = self.rows
        self._move(0, inputs, lambda *_: self._of_ranks(view, self._numbered, [rows] * self._world) if view else [])

    @property
    def _world(self) -> int:
        """Ranks that train on different rows."""
        return self._config.num_processes // self._config.sequence_parallel_size

    def _move(self, step: int, inputs: Mapping[str, Any], rows: Callable[[int, int], Rows]) -> None:
        self._micro_step += 1
        micro_step = self._micro_step
        self.now = StepPosition(step, micro_step, described(inputs), lambda: rows(step, micro_step))

    def _training_rows(self, step: int, micro_step: int) -> Rows:
        if isinstance(self._train, Stream):
            return []  # a stream draws its rows while reading
        config = self._config
        batches = batches_of_ranks(
            self.order or Shuffled(self._train.num_rows, config.seed),
            step=step,
            micro=micro_step,
            micro_batch=config.micro_batch_size,
            accumulation=config.gradient_accumulation_steps,
            world=self._world,
            iterations=config.iterations,
        )
        return self._of_ranks(self._train, self._numbered, batches)

    def _held_out_rows(self, _: int, batch: int) -> Rows:
        """Evaluation takes the held-out rows in order; consecutive batches go to consecutive ranks. It divides no sequences."""
        rows, sets = self._held_out, self._held_out_sets
        if rows is None or sets is None or isinstance(rows, TokenList):
            return []
        ranks = self._config.num_processes
        shares = [HeldOutBatches(sets, self._config.micro_batch_size, rank, ranks) for rank in range(ranks)]
        return self._of_ranks(rows, self._held_out_numbered, [share.rows(batch - 1) for share in shares])

    def _of_ranks(self, view: View, numbered: DataRows, batches: Sequence[list[int]]) -> Rows:
        ranks_per_batch = self._config.num_processes // len(batches)
        described = [_described(view, numbered, batch) for batch in batches]
        return [{"rank": rank, **described[rank // ranks_per_batch]} for rank in range(self._config.num_processes)]


def _described(view: View, numbered: DataRows, batch: list[int]) -> dict[str, Any]:
    """Returns the rows of a batch: their numbers in their files from 1, their tokens, and of several files their names."""
    places = [numbered.place(int(row)) for row in rows_behind(view, batch)]
    found: dict[str, Any] = {
        "rows": [row + 1 for _, row in places],
        "tokens": [int(tokens) for tokens in view.lengths[batch]],
    }
    names = [numbered.files[index].name for index, _ in places]
    return found | ({"sets": names} if len(numbered.files) > 1 else {})


def described(inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns name, shape, dtype and bytes of each tensor of a batch, without keeping the tensors."""
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
