"""The largest batch of a run from the data set's token counts: its size, step and rows."""

from dataclasses import dataclass, replace

import numpy as np

from training.chat.settings import ChatSettings
from training.config.choices import Packing, Task
from training.config.data_sets import Source
from training.config.run_config import RunConfig
from training.errors import DataError
from training.forecast.formula.activations import Batch
from training.model_info.config_json import ModelError, read_config
from training.model_info.families import why_padded
from training.tokens.lengths import ENDLESS, chunks
from training.tokens.order import Integers, padded, worst_batches
from training.tokens.packing import order_of
from training.tokens.selection import SetRows, select
from training.tokens.store import TokenStore, joined, open_store
from worker.datasets import run_data, token_counts
from worker.forecasts import hub_config
from worker.store import database
from worker.store.tables import Dataset


@dataclass(frozen=True)
class RowLengths:
    """The tokens of each row, untruncated, and the index of the first token with loss (-1: none).

    `sets` are the data sets whose rows these are, one after another.
    """

    lengths: Integers
    first_trained: Integers
    sets: tuple[SetRows, ...] = ()


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


def counted(config: RunConfig) -> RowLengths | None:
    """The token counts of the run's data sets; None if one is not tokenized for its model yet."""
    stores = [stored for source in config.sources if (stored := _store(config, source))]
    if len(stores) < len(config.sources):
        return None
    together = joined([store for store, _ in stores])
    sets = tuple(
        SetRows(store.rows, source.max_rows, name) for (store, name), source in zip(stores, config.sources, strict=True)
    )
    return RowLengths(together.lengths, together.first_trained_with(train_on_prompt=config.train_on_prompt), sets)


def _store(config: RunConfig, source: Source) -> tuple[TokenStore, str] | None:
    """The tokens of a data set and its name; None if it is not tokenized."""
    if not run_data.DATASET_ID.fullmatch(source.path):
        return None
    with database.read() as session:
        item = session.get(Dataset, source.path)
    if item is None:
        return None
    state = token_counts.state(
        item.sha256,
        config.model,
        source.columns or config.columns or item.columns_map,
        revision=config.revision,
        chat=ChatSettings.of(config).key,
    )
    return (open_store(state.store), source.name or item.name) if state.store else None


def worst_batches_of(config: RunConfig, counts: RowLengths) -> list[Worst]:
    """The micro batches of a run that may need the most memory: by tokens, and for an encoder-decoder also by source and
    by target length. Empty if no row has loss."""
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
    rows, held_out = selected.train, _held_out_tokens(config, source, target, selected.held_out)
    if not len(rows):
        return []
    sizes, both = [kind[rows] for kind in kinds], (source[rows], target[rows])
    if config.task is Task.PRETRAINING:  # it truncates no row
        text, _, pieces = chunks(lengths[rows], config.max_length)
        rows, sizes, both = rows[text], [pieces], (pieces, pieces - 1)
    try:
        largest = [worst for one in sizes for worst in _by_place(config, one, rows, *both, counts.sets)]
    except DataError:  # the weights make no epoch
        return []
    return [replace(one, batch=replace(one.batch, held_out_tokens=held_out)) for one in largest]


def _held_out_tokens(config: RunConfig, source: Integers, target: Integers, rows: Integers) -> int:
    """The most tokens with logits in a batch of held-out rows, which are evaluated in their order; 0 if there are none."""
    if config.task not in (Task.SFT, Task.SEQ2SEQ):
        return 0
    starts = range(0, len(rows), config.micro_batch_size)
    batches = [rows[start : start + config.micro_batch_size] for start in starts]
    if config.task is Task.SFT and lies_flat(config):
        return max((int(target[batch].sum()) for batch in batches), default=0)
    longest = target if config.task is Task.SEQ2SEQ else source
    return max((len(batch) * padded(int(longest[batch].max())) for batch in batches), default=0)


def _by_place(
    config: RunConfig, sizes: Integers, rows: Integers, source: Integers, target: Integers, sets: tuple[SetRows, ...]
) -> list[Worst]:
    """The largest batch by `sizes`; where it comes too early for a full memory, that of each place."""
    arrays = config, sizes, rows, source, target, sets
    worst, accumulates = _worst(*arrays), config.gradient_accumulation_steps > 1
    if worst is None:
        return []
    if not (worst.batch.first_step or (accumulates and worst.batch.first_micro)):
        return [worst]
    places = [(step, micro) for step in (True, False) for micro in ((True, False) if accumulates else (True,))]
    largest = [one for place in places if (one := _worst(*arrays, first=place))]
    return [replace(one, places=tuple(largest)) for one in largest]


def _worst(
    config: RunConfig,
    sizes: Integers,
    rows: Integers,
    source: Integers,
    target: Integers,
    sets: tuple[SetRows, ...],
    first: tuple[bool, bool] | None = None,
) -> Worst | None:
    """The largest batch by `sizes`; `rows` are the row numbers in the data set, all arrays have one entry per training row."""
    flat = lies_flat(config)
    ends = np.searchsorted(rows, np.cumsum([one.rows for one in sets])).tolist()
    batches = worst_batches(
        sizes, micro_batch=config.micro_batch_size, accumulation=config.gradient_accumulation_steps,
        world=config.num_processes // config.sequence_parallel_size, seed=config.seed, epochs=config.epochs,
        max_steps=config.max_steps, count=1, pads=not flat, order=order_of(config, sizes, ends), first=first,
    )  # fmt: skip
    if not batches:
        return None
    (worst,) = batches
    members = worst.rows
    count, longest, answer = len(members), int(source[members].max()), int(target[members].max())
    if config.task is Task.SEQ2SEQ:
        wide, long = padded(longest), padded(answer)
        batch = Batch(count, wide, count * wide, count * long, long, count * long)
    elif flat:
        batch = Batch(count, longest, int(source[members].sum()), int(target[members].sum()), flat=True)
    else:
        batch = Batch(count, padded(longest), count * padded(longest), count * padded(longest))
    batch = replace(batch, first_step=worst.step == 1, first_micro=worst.micro == 1, labeled=int(target[members].sum()))
    top = int(worst.rows[int(np.argmax(sizes[worst.rows]))])
    tokens = int(sizes[top])
    place = worst.epoch, worst.step, worst.rank, [int(row) + 1 for row in rows[members]]
    lengths = source[members].tolist(), target[members].tolist()
    return Worst(batch, *place, _row_words(int(rows[top]), sets), tokens, *lengths)


def _row_words(row: int, sets: tuple[SetRows, ...]) -> str:
    """A row (from 0) as text; of several data sets with the name of its own."""
    for data_set in sets[:-1]:
        if row < data_set.rows:
            break
        row -= data_set.rows
    else:
        data_set = sets[-1] if sets else SetRows(0)
    return f"{row + 1:,}" + (f" of {data_set.name}" if len(sets) > 1 else "")


def lies_flat(config: RunConfig) -> bool:
    """True if rows are concatenated without padding, as training/batches/layout.py decides; models that were not tried
    (training/model_info/families.py) are taken to allow it."""
    plain = config.task in (Task.SFT, Task.PRETRAINING) and config.sequence_parallel_size == 1
    chosen = plain and config.packing is not Packing.NONE and not config.neftune_noise_alpha
    try:
        values = read_config(hub_config.config_file(config.model, config.revision)) if chosen else {}
    except ModelError:  # there is no config.json on this machine
        values = {}
    return chosen and not why_padded(str(values.get("model_type") or ""))
