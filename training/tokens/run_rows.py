"""The rows of a run: which train, which are held out, and how many steps they take. Only numpy.

The run selects its rows here, and so does everything that says something about it before it starts: its memory, steps and hours,
the plan of a sweep, and the checks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.config.choices import MixBy, Packing
from training.config.run_config import NEAR_DUPLICATES, RunConfig
from training.errors import DataError
from training.tokens.duplicates import count_shared
from training.tokens.lengths import ENDLESS, chunks, trains
from training.tokens.order import Integers, Order, steps_per_epoch
from training.tokens.packing import order_of
from training.tokens.selection import Selection, SetRows, held_out_count, select, shares_of, sliced_rows
from training.tokens.store import Store


@dataclass(frozen=True)
class RowLengths:
    """The tokens of each row, untruncated (0: it cannot train), and the index of the first token with loss (-1: none).

    `sets` are the data sets whose rows these are, one after another. `parts` are the tokens of each part of the rows, where a task
    has two. `hashes` are those of their tokens, `strata` the rows' values of `stratify_by`, `groups` their groups by the column
    `group_by`, and `near` those of near duplicates: None if they are not known. `validation` are the rows of the validation data,
    None if there are none or they are not tokenized.
    """

    lengths: Integers
    first_trained: Integers
    sets: tuple[SetRows, ...] = ()
    parts: tuple[Integers, ...] = ()
    hashes: NDArray[np.uint64] | None = None
    strata: Sequence[Any] | None = None
    groups: Integers | None = None
    near: Integers | None = None
    validation: "RowLengths | None" = None


def limit_of(config: RunConfig) -> int:
    """Tokens after which a row is truncated, or a prompt left out; pretraining truncates none."""
    return ENDLESS if config.task.traits.cuts_texts else config.max_length


def rows_of(config: RunConfig, stores: Sequence[Store], sets: Sequence[SetRows] = ()) -> RowLengths:
    """The rows of a task's token stores, one for each text that the task needs (`TaskTraits.texts`)."""
    parts = tuple(store.lengths for store in stores)
    lengths = np.where(reduce(np.minimum, parts) > 0, reduce(np.maximum, parts), 0)  # 0 if a part is missing
    # An encoder's input carries no loss.
    learning = stores[1:] if config.task.traits.has_encoder else stores
    everything = config.train_on_prompt or config.task.traits.cuts_texts
    firsts = [store.first_trained_with(train_on_prompt=everything) for store in learning]
    missing = (reduce(np.minimum, firsts) < 0) | (lengths == 0)
    if config.task.traits.samples:  # the end of a prompt is where the answer begins
        missing |= lengths > limit_of(config)
    return RowLengths(lengths, np.where(missing, -1, reduce(np.maximum, firsts)), tuple(sets), parts, stores[0].hashes)


def halved(rows: RowLengths) -> RowLengths:
    """Rows as an encoder-decoder takes them: the prompt is its input, the answer its output."""
    source = np.maximum(rows.first_trained, 0)
    target = np.maximum(rows.lengths - source, 0)
    trained = np.where((rows.first_trained >= 0) & (target > 0), 0, -1)
    return replace(rows, first_trained=trained, parts=(source, target))


def selected_rows(config: RunConfig, rows: RowLengths) -> Selection:
    """The training and held-out rows of a run. Where most rows are near duplicates of each other, so that less than half of the
    rows asked for could be held out, each row stands by itself. Raises DataError as `select`."""
    if config.streaming:
        return _of_stream(config, rows)
    eval_split = held_out_share(config)
    chosen = partial(
        select,
        rows.lengths,
        rows.first_trained,
        max_length=limit_of(config),
        seed=config.seed,
        eval_split=eval_split,
        data_slice=config.data_slice,
        max_samples=config.max_samples,
        strata=rows.strata if config.stratify_by and eval_split else None,
        sets=rows.sets,
    )
    if not (config.group_by and eval_split):
        return chosen()
    if config.group_by != NEAR_DUPLICATES:
        return chosen(groups=rows.groups)
    try:
        selection = chosen(groups=rows.near)
    except DataError as error:
        if error.field != "group_by":
            raise
        return chosen()
    held_out = len(selection.held_out)
    return chosen() if 2 * held_out < held_out_count(eval_split, held_out + len(selection.train)) else selection


def leaked_rows(rows: Integers, held_out: Integers, near: Integers) -> NDArray[np.bool_]:
    """A mask of the `held_out` rows that are near duplicates of one of `rows`; `near` are the groups of all rows."""
    return np.isin(near[held_out], near[rows])


def held_out_leaks(config: RunConfig, rows: RowLengths) -> int:
    """The number of rows held out of the data that are near duplicates of a training row; where these are not known, of equal
    ones. Raises DataError as `select`."""
    selection = selected_rows(config, rows)
    if rows.near is not None:
        return int(leaked_rows(selection.train, selection.held_out, rows.near).sum())
    return 0 if rows.hashes is None else count_shared(rows.hashes[selection.train], rows.hashes[selection.held_out])


def validation_rows(config: RunConfig, rows: RowLengths) -> Integers:
    """The rows of the validation data that are evaluated: all with loss tokens, of each data set at most its `max_rows`. Raises
    DataError as `select`."""
    whole = config.model_copy(update={"data_slice": None, "max_samples": None, "eval_split": 0, "streaming": False})
    return selected_rows(whole, rows).train


def held_out_share(config: RunConfig) -> float:
    """`eval_split` where it takes effect: validation data replace it."""
    return 0 if config.validation_data else config.eval_split


def _of_stream(config: RunConfig, rows: RowLengths) -> Selection:
    """A stream holds out its first rows, and leaves no row out of its steps."""
    used = sliced_rows(config.data_slice, len(rows.lengths))
    first = held_out_count(held_out_share(config), used)
    held_out = np.flatnonzero(trains(rows.first_trained[:first], config.max_length))
    truncated = int(np.count_nonzero(rows.lengths[:used] > config.max_length))
    return Selection(np.arange(first, used), held_out, truncated, 0, 0)


def counted_rows(config: RunConfig, sets: Sequence[SetRows]) -> list[int]:
    """The training rows of each data set if all of its rows carry loss, as far as they are known before tokenization.

    Raises:
        DataError: `eval_split` would hold out all rows.
    """
    used = [
        min(sliced_rows(config.data_slice, one.rows), config.max_samples or one.rows, one.max_rows or one.rows)
        for one in sets
    ]
    held_out = shares_of(np.array(used), held_out_count(held_out_share(config), sum(used)))
    return [rows - int(share) for rows, share in zip(used, held_out, strict=True)]


def counted_steps(config: RunConfig, sets: Sequence[SetRows]) -> int | None:
    """The optimizer steps of a run whose data is not tokenized, if all of its rows carry loss; None where they depend on tokens.
    Raises DataError as `counted_rows`."""
    by_tokens = config.mixes and len(sets) > 1 and config.mix_by is MixBy.TOKENS
    if config.max_steps or config.packing is Packing.PACKED or config.task.traits.cuts_texts or by_tokens:
        return config.max_steps
    counts = counted_rows(config, sets)
    rows = np.zeros(sum(counts) if config.mixes and len(sets) > 1 else 0, np.int64)
    plain = sum(counts) * config.samples_per_prompt
    if not len(rows):
        return steps_of(config, plain)
    return TrainingRows(config, rows, rows, rows, rows, tuple(np.cumsum(counts).tolist())).with_samples().steps


def steps_of(config: RunConfig, units: int) -> int:
    """The optimizer steps of a run with so many rows or packs in an epoch."""
    if config.max_steps:
        return config.max_steps
    if config.streaming:  # the last batch of an epoch is filled from the next one
        return max(1, ceil(config.epochs * units / config.global_batch_size))
    world = max(config.num_processes // config.sequence_parallel_size, 1)
    accumulation = config.gradient_accumulation_steps
    per_epoch = steps_per_epoch(units, config.micro_batch_size, accumulation, world, config.iterations)
    return max(1, ceil(per_epoch * config.epochs))


@dataclass(frozen=True)
class TrainingRows:
    """The rows as a run takes them, with one entry for each: in pretraining chunks of texts, of prompts all samples.

    `numbers` are those of the rows in the data; `lengths` their tokens, by which they are ordered and packed; `source` and `target`
    those in the model and those with loss (of an encoder-decoder: of its input and output). `ends` are the indexes at which the
    rows of each data set end.
    """

    config: RunConfig
    numbers: Integers
    lengths: Integers
    source: Integers
    target: Integers
    ends: tuple[int, ...] = field(default=())

    @cached_property
    def order(self) -> Order | None:
        """Their order; None if they are only shuffled. Raises DataError if the weights of a mixture make no epoch."""
        return order_of(self.config, self.lengths, self.ends)

    @property
    def units(self) -> int:
        """The number of rows or packs in an epoch. Raises DataError as `order`."""
        if self.config.streaming or self.order is None:
            return len(self.numbers)
        return len(self.order)

    @property
    def steps(self) -> int:
        """The optimizer steps of the run. Raises DataError as `order`."""
        return self.config.max_steps or steps_of(self.config, self.units)

    def with_samples(self) -> "TrainingRows":
        """Prompts with all of their samples, each of the greatest length; other rows as they are."""
        if not self.config.task.traits.samples:
            return self
        each = self.config.samples_per_prompt
        numbers, lengths, source = (np.repeat(of, each) for of in (self.numbers, self.lengths, self.source))
        answers = np.full_like(numbers, self.config.max_completion_length)
        return replace(
            self, numbers=numbers, lengths=lengths, source=source + answers, target=answers,
            ends=tuple(end * each for end in self.ends),
        )  # fmt: skip


def training_rows(config: RunConfig, rows: RowLengths, numbers: Integers) -> TrainingRows:
    """Some rows of the data, truncated and divided as the run does."""
    source, target = sides(config, rows)
    ends = np.searchsorted(numbers, np.cumsum([one.rows for one in rows.sets]))
    if config.task.traits.cuts_texts:  # it truncates no row
        text, _, pieces = chunks(rows.lengths[numbers], config.max_length)
        ends = np.searchsorted(text, ends)
        return TrainingRows(config, numbers[text], pieces, pieces, pieces - 1, tuple(ends.tolist()))
    source, target = source[numbers], target[numbers]
    longest = np.maximum(source, target) if config.task.traits.has_encoder else source
    return TrainingRows(config, numbers, longest, source, target, tuple(ends.tolist())).with_samples()


def sides(config: RunConfig, rows: RowLengths) -> tuple[Integers, Integers]:
    """Of each row the tokens in the model and the tokens with loss; of an encoder-decoder those of its input and its output."""
    limit = config.max_length
    if config.task.traits.has_encoder:
        source, target = rows.parts
        return np.minimum(source, limit), np.minimum(target, config.max_target_length or limit)
    source = np.minimum(rows.lengths, limit)
    return source, np.maximum(source - np.maximum(rows.first_trained, 1), 0)
