"""The largest batch of a run from the data set's token counts: its size, step and rows."""

from dataclasses import dataclass, replace

import numpy as np

from training.config.run_config import NEAR_DUPLICATES, RunConfig
from training.errors import DataError
from training.forecast.formula.activations import Batch
from training.tokens.order import Integers, padded, worst_batches
from training.tokens.run_rows import (
    RowLengths,
    TrainingRows,
    held_out_share,
    selected_rows,
    sides,
    training_rows,
    validation_rows,
)
from training.tokens.selection import SetRows


@dataclass(frozen=True)
class Worst:
    """The largest batch and its position: step from 1, rank and epoch from 0, rows from 1 (of several data sets together).

    `lengths` are the tokens of its rows, `answers` those with loss (seq2seq: the target's). `places` are the largest batches of
    the first step and of later ones, of first micro steps and of later ones, if the largest is not among the last.
    """

    batch: Batch
    epoch: int
    step: int
    rank: int
    rows: list[int]
    longest_row: str
    longest: int
    lengths: list[int]
    answers: list[int]
    places: tuple["Worst", ...] = ()

    @property
    def words(self) -> str:
        return (
            f"The largest batch is at step {self.step:,} on rank {self.rank}; its longest row is {self.longest_row} "
            f"with {self.longest:,} tokens."
        )


def worst_batches_of(config: RunConfig, counts: RowLengths, *, flat: bool) -> list[Worst]:
    """The micro batches of a run that may need the most memory: by tokens, and for an encoder-decoder also by source and
    by target length; with rows concatenated without padding if they lie `flat`. Empty if no row has loss, and if it is not known in
    advance which rows the run takes: those of a stream's batches, or of a part of an epoch of rows that may be held out."""
    if config.streaming or (splits_unknown(config, counts) and (config.mixes or config.max_steps)):
        return []
    try:
        train, held_out = _train_and_held_out(config, counts)
        rows = training_rows(config, counts, train)
        sizes = (
            [rows.source + rows.target, rows.source, rows.target] if config.task.traits.has_encoder else [rows.source]
        )
        largest = [worst for size in sizes for worst in _by_place(rows, counts.sets, size, flat=flat)]
    except DataError:  # no row carries loss, or the weights make no epoch
        return []
    tokens = _held_out_tokens(config, counts, held_out, flat=flat)
    return [replace(worst, batch=replace(worst.batch, held_out_tokens=tokens)) for worst in largest]


def splits_unknown(config: RunConfig, counts: RowLengths) -> bool:
    """True if `stratify_by` or `group_by` decides by values that are not known which rows are held out."""
    return bool(unknown_split(config, counts))


def unknown_split(config: RunConfig, counts: RowLengths) -> str | None:
    """The value of the setting that decides by values that are not known which rows are held out; None if none does."""
    if not held_out_share(config):
        return None
    if config.stratify_by and counts.strata is None:
        return config.stratify_by
    groups = counts.near if config.group_by == NEAR_DUPLICATES else counts.groups
    return config.group_by if config.group_by and groups is None else None


def _train_and_held_out(config: RunConfig, counts: RowLengths) -> tuple[Integers, Integers]:
    """The training and the held-out rows; where it is not known which are held out, each row may be either."""
    selected = selected_rows(config, counts)
    if not splits_unknown(config, counts):
        return selected.train, selected.held_out
    either = np.union1d(selected.train, selected.held_out)
    return either, either


def _held_out_tokens(config: RunConfig, counts: RowLengths, held_out: Integers, *, flat: bool) -> int:
    """The most tokens with logits in a batch of the evaluation: held-out rows, or the validation data, of whose rows each has the
    maximum length if they are not tokenized; 0 without an evaluation."""
    if (
        config.task.traits.cuts_texts or not config.task.traits.chunks_loss
    ):  # pieces, or a loss that is no mean over tokens
        return 0
    if not config.validation_data:
        return _evaluated_tokens(config, counts, held_out, flat=flat)
    if counts.validation is None:
        longest = config.max_target_length if config.task.traits.has_encoder else None
        return config.micro_batch_size * (longest or config.max_length)
    try:
        rows = validation_rows(config, counts.validation)
    except DataError:  # the run is refused
        return 0
    return _evaluated_tokens(config, counts.validation, rows, flat=flat)


def _evaluated_tokens(config: RunConfig, counts: RowLengths, rows: Integers, *, flat: bool) -> int:
    """The most tokens with logits in a batch of rows, which are evaluated in their order; each batch has rows of one data set."""
    source, target = sides(config, counts)
    ends = [*np.searchsorted(rows, np.cumsum([one.rows for one in counts.sets[:-1]])).tolist(), len(rows)]
    size = config.micro_batch_size
    batches = [
        rows[first : min(first + size, end)]
        for start, end in zip([0, *ends[:-1]], ends, strict=True)
        for first in range(start, end, size)
    ]
    if flat:
        return max((int(target[batch].sum()) for batch in batches), default=0)
    longest = target if config.task.traits.has_encoder else source
    return max((len(batch) * padded(int(longest[batch].max())) for batch in batches), default=0)


def _by_place(rows: TrainingRows, sets: tuple[SetRows, ...], sizes: Integers, *, flat: bool) -> list[Worst]:
    """The largest batch by `sizes`; where it comes too early for a full memory, that of each place."""
    accumulates = rows.config.gradient_accumulation_steps > 1
    worst = _worst(rows, sets, sizes, flat=flat)
    if worst is None:
        return []
    if not (worst.batch.first_step or (accumulates and worst.batch.first_micro)):
        return [worst]
    places = [(step, micro) for step in (True, False) for micro in ((True, False) if accumulates else (True,))]
    largest = [one for place in places if (one := _worst(rows, sets, sizes, flat=flat, first=place))]
    return [replace(one, places=tuple(largest)) for one in largest]


def _worst(
    rows: TrainingRows,
    sets: tuple[SetRows, ...],
    sizes: Integers,
    *,
    flat: bool,
    first: tuple[bool, bool] | None = None,
) -> Worst | None:
    """The largest batch by `sizes`, of one place of a step with `first`: in the first step and micro step, or in later ones."""
    config = rows.config
    batches = worst_batches(
        sizes, micro_batch=config.micro_batch_size, accumulation=config.gradient_accumulation_steps,
        world=config.num_processes // config.sequence_parallel_size, seed=config.seed, epochs=config.epochs,
        max_steps=config.max_steps, count=1, pads=not flat, order=rows.order, first=first, iterations=config.iterations,
    )  # fmt: skip
    if not batches:
        return None
    (worst,) = batches
    source, target, numbers = rows.source[worst.rows], rows.target[worst.rows], rows.numbers[worst.rows]
    count, longest, labeled = len(source), int(source.max()), int(target.sum())
    if config.task.traits.has_encoder:
        wide, long = padded(longest), padded(int(target.max()))
        batch = Batch(count, wide, count * wide, count * long, long, count * long)
    elif flat:
        batch = Batch(count, longest, int(source.sum()), labeled, flat=True)
    else:
        batch = Batch(count, padded(longest), count * padded(longest), count * padded(longest))
    batch = replace(batch, first_step=worst.step == 1, first_micro=worst.micro == 1, labeled=labeled)
    top = int(np.argmax(sizes[worst.rows]))
    place = worst.epoch, worst.step, worst.rank, [int(row) + 1 for row in numbers]
    tokens = int(sizes[worst.rows[top]])
    return Worst(batch, *place, _row_words(int(numbers[top]), sets), tokens, source.tolist(), target.tolist())


def _row_words(row: int, sets: tuple[SetRows, ...]) -> str:
    """A row (from 0) as text; of several data sets with the name of its own."""
    for data_set in sets[:-1]:
        if row < data_set.rows:
            break
        row -= data_set.rows
    else:
        data_set = sets[-1] if sets else SetRows(0)
    return f"{row + 1:,}" + (f" of {data_set.name}" if len(sets) > 1 else "")
