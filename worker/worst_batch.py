"""The largest batch of a run, from a data set's counted tokens: how large, at which step, of which rows."""

from dataclasses import dataclass

import numpy as np

from training.activations import Batch
from training.config import Packing, RunConfig, Task
from training.failure import DataError
from training.order import Integers, padded, worst_batches
from training.packing import order_of
from training.selection import select
from training.token_store import open_store
from worker import database, measuring, run_data
from worker.models import Dataset


@dataclass(frozen=True)
class RowLengths:
    """A data set's tokens a row, untruncated, and the first of them that carries loss, -1 for none."""

    lengths: Integers
    first_trained: Integers


@dataclass(frozen=True)
class Worst:
    """The batch that takes most and where a run meets it: step from 1, rank and epoch from 0, its rows and the longest of them
    as people count, from 1. `lengths` are its rows' tokens, `answers` those that carry loss (seq2seq: the targets')."""

    batch: Batch
    epoch: int
    step: int
    rank: int
    rows: list[int]
    longest_row: int
    longest: int
    lengths: list[int]
    answers: list[int]

    @property
    def words(self) -> str:
        return (
            f"The largest batch comes at step {self.step:,} on rank {self.rank}; in it row {self.longest_row:,} "
            f"has {self.longest:,} tokens."
        )


def counted(config: RunConfig, model: str) -> RowLengths | None:
    """The tokens of the run's data set, where they are counted already for the model."""
    if not run_data.DATASET_ID.fullmatch(config.data):
        return None
    with database.read() as session:
        item = session.get(Dataset, config.data)
    if item is None:
        return None
    state = measuring.state(
        item.sha256,
        model,
        config.columns or item.columns_map,
        revision=config.revision,
        template_kwargs=config.chat_template_kwargs,
    )
    if state.store is None:
        return None
    store = open_store(state.store)
    first = store.first_trained_with(train_on_prompt=config.train_on_prompt)
    return RowLengths(store.lengths, first)


def worst_batches_of(config: RunConfig, known: RowLengths) -> list[Worst]:
    """The micro batches of a run that can take most: the one with the longest row or most tokens, and for an encoder-decoder
    those with the longest source and the longest target. Empty where no row trains."""
    lengths, first_trained = known.lengths, known.first_trained
    if config.task is Task.SEQ2SEQ:
        source = np.minimum(np.maximum(first_trained, 0), config.max_length)
        target = np.minimum(
            np.maximum(lengths - np.maximum(first_trained, 0), 0), config.max_target_length or config.max_length
        )
        rows = np.flatnonzero((first_trained >= 0) & (target > 0))
        kinds = [source + target, source, target]
    else:
        try:
            chosen = select(
                lengths, first_trained, max_length=config.max_length, seed=config.seed, eval_split=config.eval_split,
                data_slice=config.data_slice, max_samples=config.max_samples,
            )  # fmt: skip
        except DataError:
            return []
        rows, source = chosen.train, np.minimum(lengths, config.max_length)
        target, kinds = np.maximum(source - np.maximum(first_trained, 1), 0), [source]
    if not len(rows):
        return []
    return [_worst(config, kind[rows], rows, source, target) for kind in kinds]


def _worst(config: RunConfig, sizes: Integers, rows: Integers, source: Integers, target: Integers) -> Worst:
    flat = lies_flat(config)
    (worst,) = worst_batches(
        sizes, micro_batch=config.micro_batch_size, accumulation=config.gradient_accumulation_steps,
        world=config.num_processes // config.sequence_parallel_size, seed=config.seed, epochs=config.epochs,
        max_steps=config.max_steps, count=1, pads=not flat, order=order_of(config, sizes),
    )  # fmt: skip
    mine = rows[worst.rows]
    count, longest, answer = len(mine), int(source[mine].max()), int(target[mine].max())
    if config.task is Task.SEQ2SEQ:
        wide, long = padded(longest), padded(answer)
        batch = Batch(count, wide, count * wide, count * long, long, count * long)
    elif flat:
        batch = Batch(count, longest, int(source[mine].sum()), int(target[mine].sum()), flat=True)
    else:
        batch = Batch(count, padded(longest), count * padded(longest), count * padded(longest))
    top = int(worst.rows[int(np.argmax(sizes[worst.rows]))])
    tokens = int(sizes[top])
    return Worst(batch, worst.epoch, worst.step, worst.rank, [int(row) + 1 for row in mine], int(rows[top]) + 1, tokens,
                 source[mine].tolist(), target[mine].tolist())  # fmt: skip


def lies_flat(config: RunConfig) -> bool:
    """Whether a run's rows are laid end to end, as training/layout.py decides for the models that allow it."""
    plain = config.task in (Task.SFT, Task.PRETRAINING) and config.sequence_parallel_size == 1
    return plain and config.packing is not Packing.NONE and not config.neftune_noise_alpha
