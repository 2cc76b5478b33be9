"""The largest batch of a run from the data set's token counts: its size, step and rows."""

from dataclasses import dataclass, replace

import numpy as np

from training.config.choices import Task
from training.config.run_config import RunConfig
from training.errors import DataError
from training.forecast.formula.activations import Batch
from training.tokens.lengths import ENDLESS, chunks
from training.tokens.order import Integers, padded, worst_batches
from training.tokens.packing import order_of
from training.tokens.selection import SetRows, select
from worker.forecasts.row_lengths import RowLengths


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


@dataclass(frozen=True)
class _TrainingRows:
    """The rows that train: their numbers in the data set, and the tokens and the tokens with loss of each; of an encoder-decoder
    those of source and target. `flat` is True if they are concatenated without padding."""

    numbers: Integers
    source: Integers
    target: Integers
    sets: tuple[SetRows, ...]
    flat: bool


def worst_batches_of(config: RunConfig, counts: RowLengths, *, flat: bool) -> list[Worst]:
    """The micro batches of a run that may need the most memory: by tokens, and for an encoder-decoder also by source and
    by target length; with rows concatenated without padding if they lie `flat`. Empty if no row has loss."""
    lengths, first_trained, limit = counts.lengths, counts.first_trained, config.max_length
    if config.task is Task.SEQ2SEQ:
        starts = np.maximum(first_trained, 0)
        source = np.minimum(starts, limit)
        target = np.minimum(np.maximum(lengths - starts, 0), config.max_target_length or limit)
        first_trained = np.where((first_trained >= 0) & (target > 0), 0, -1)
        kinds = [source + target, source, target]
    else:
        source = np.minimum(lengths, limit)
        target, kinds = np.maximum(source - np.maximum(first_trained, 1), 0), [source]
    try:
        selected = select(
            lengths, first_trained, max_length=ENDLESS if config.task is Task.PRETRAINING else limit, seed=config.seed,
            eval_split=config.eval_split, data_slice=config.data_slice, max_samples=config.max_samples, sets=counts.sets,
        )  # fmt: skip
    except DataError:
        return []
    train = selected.train
    if not len(train):
        return []
    rows, sizes = _TrainingRows(train, source[train], target[train], counts.sets, flat), [kind[train] for kind in kinds]
    if config.task.samples:  # of the greatest length, to prompts that are at most as long as their rows
        train = np.repeat(train, config.samples_per_prompt)
        answers = np.full_like(train, config.max_completion_length)
        rows, sizes = (
            _TrainingRows(train, source[train] + answers, answers, counts.sets, flat),
            [source[train] + answers],
        )
    if config.task is Task.PRETRAINING:  # it truncates no row
        text, _, pieces = chunks(lengths[train], config.max_length)
        rows, sizes = _TrainingRows(train[text], pieces, pieces - 1, counts.sets, flat), [pieces]
    held_out = _held_out_tokens(config, source, target, selected.held_out, flat=flat)
    try:
        largest = [worst for size in sizes for worst in _by_place(config, rows, size)]
    except DataError:  # the weights make no epoch
        return []
    return [replace(worst, batch=replace(worst.batch, held_out_tokens=held_out)) for worst in largest]


def _held_out_tokens(config: RunConfig, source: Integers, target: Integers, rows: Integers, *, flat: bool) -> int:
    """The most tokens with logits in a batch of held-out rows, which are evaluated in their order; 0 if there are none."""
    if config.task not in (Task.SFT, Task.SEQ2SEQ):
        return 0
    starts = range(0, len(rows), config.micro_batch_size)
    batches = [rows[start : start + config.micro_batch_size] for start in starts]
    if config.task is Task.SFT and flat:
        return max((int(target[batch].sum()) for batch in batches), default=0)
    longest = target if config.task is Task.SEQ2SEQ else source
    return max((len(batch) * padded(int(longest[batch].max())) for batch in batches), default=0)


def _by_place(config: RunConfig, rows: _TrainingRows, sizes: Integers) -> list[Worst]:
    """The largest batch by `sizes`; where it comes too early for a full memory, that of each place."""
    worst, accumulates = _worst(config, rows, sizes), config.gradient_accumulation_steps > 1
    if worst is None:
        return []
    if not (worst.batch.first_step or (accumulates and worst.batch.first_micro)):
        return [worst]
    places = [(step, micro) for step in (True, False) for micro in ((True, False) if accumulates else (True,))]
    largest = [one for place in places if (one := _worst(config, rows, sizes, first=place))]
    return [replace(one, places=tuple(largest)) for one in largest]


def _worst(
    config: RunConfig, rows: _TrainingRows, sizes: Integers, first: tuple[bool, bool] | None = None
) -> Worst | None:
    """The largest batch by `sizes`, of one place of a step with `first`: in the first step and micro step, or in later ones."""
    ends = np.searchsorted(rows.numbers, np.cumsum([one.rows for one in rows.sets])).tolist()
    batches = worst_batches(
        sizes, micro_batch=config.micro_batch_size, accumulation=config.gradient_accumulation_steps,
        world=config.num_processes // config.sequence_parallel_size, seed=config.seed, epochs=config.epochs,
        max_steps=config.max_steps, count=1, pads=not rows.flat, order=order_of(config, sizes, ends), first=first,
        iterations=config.iterations,
    )  # fmt: skip
    if not batches:
        return None
    (worst,) = batches
    source, target, numbers = rows.source[worst.rows], rows.target[worst.rows], rows.numbers[worst.rows]
    count, longest, labeled = len(source), int(source.max()), int(target.sum())
    if config.task is Task.SEQ2SEQ:
        wide, long = padded(longest), padded(int(target.max()))
        batch = Batch(count, wide, count * wide, count * long, long, count * long)
    elif rows.flat:
        batch = Batch(count, longest, int(source.sum()), labeled, flat=True)
    else:
        batch = Batch(count, padded(longest), count * padded(longest), count * padded(longest))
    batch = replace(batch, first_step=worst.step == 1, first_micro=worst.micro == 1, labeled=labeled)
    top = int(np.argmax(sizes[worst.rows]))
    place = worst.epoch, worst.step, worst.rank, [int(row) + 1 for row in numbers]
    tokens = int(sizes[worst.rows[top]])
    return Worst(batch, *place, _row_words(int(numbers[top]), rows.sets), tokens, source.tolist(), target.tolist())


def _row_words(row: int, sets: tuple[SetRows, ...]) -> str:
    """A row (from 0) as text; of several data sets with the name of its own."""
    for data_set in sets[:-1]:
        if row < data_set.rows:
            break
        row -= data_set.rows
    else:
        data_set = sets[-1] if sets else SetRows(0)
    return f"{row + 1:,}" + (f" of {data_set.name}" if len(sets) > 1 else "")
