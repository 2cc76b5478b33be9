"""Statistics of a tokenized data set for given settings, and its rows as tokens."""

from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders

from training.config.run_config import RunConfig
from training.errors import DataError
from training.tokens import lengths as numbers
from training.tokens.groups import known_near_groups
from training.tokens.order import worst_batches
from training.tokens.run_rows import RowLengths, held_out_leaks, selected_rows
from training.tokens.selection import Selection
from training.tokens.store import TokenStore

LONGEST_SHOWN = 20_000  # tokens of a row that are rendered


@dataclass(frozen=True)
class Token:
    """A token. `trained`: it carries loss; `cut`: it is beyond the maximum length. `text` is empty if a character continues."""

    id: int
    text: str
    trained: bool
    cut: bool
    special: bool


def report(
    store: TokenStore,
    *,
    max_length: int,
    micro_batch: int,
    accumulation: int = 1,
    world: int = 1,
    seed: int = 42,
    epochs: float = 3.0,
    eval_split: float = 0.0,
) -> dict[str, Any]:
    """The statistics of a data set for these settings. Row numbers count from 1.

    Batches are flat, as in a run by default. Their position is exact for a run with the same settings, `eval_split` included.
    """
    lengths, first = store.lengths, store.first_trained
    chosen: Selection | None = None
    problem = ""
    settings = {"max_length": max_length, "seed": seed, "eval_split": eval_split}
    config = RunConfig(model="-", data="-").model_copy(update=settings)
    counts = RowLengths(lengths, first, hashes=store.hashes, near=known_near_groups(store))
    try:
        chosen = selected_rows(config, counts)
    except DataError as error:
        problem = f"{error.message} {error.fix}"
    rows = chosen.train if chosen else np.empty(0, np.int64)
    cut = np.minimum(lengths[rows], max_length)
    batches = worst_batches(
        cut, micro_batch=micro_batch, accumulation=accumulation, world=world, seed=seed, epochs=epochs, pads=False
    )
    return _facts(store.facts) | {
        "truncated_rows": numbers.truncated(lengths, max_length),
        "lost_tokens": numbers.lost_tokens(lengths, max_length),
        "untrained_rows": numbers.untrained(first, lengths, max_length),
        "train_rows": len(rows),
        "held_out_rows": len(chosen.held_out) if chosen else 0,
        "leaked_rows": _leaks(config, counts) if chosen else None,
        "leaked_rows_ungrouped": _leaks(config.model_copy(update={"group_by": None}), counts) if chosen else None,
        "problem": problem,
        "padding_waste": numbers.padding_waste(cut, micro_batch, seed, max_length),
        "packing_waste": numbers.packing_waste(cut, max_length),
        "worst_batches": [asdict(batch) | {"rows": [int(rows[row]) + 1 for row in batch.rows]} for batch in batches],
    }


def _leaks(config: RunConfig, counts: RowLengths) -> int | None:
    """The held-out rows that are near duplicates of training rows; None for stores of earlier versions, which lack these."""
    return None if counts.near is None else held_out_leaks(config, counts)


def _facts(facts: dict[str, Any]) -> dict[str, Any]:
    """The statistics that do not depend on the settings, from the store."""
    names = (
        "tokens",
        "rows",
        "empty_rows",
        "duplicate_rows",
        "near_duplicate_rows",
        "histogram",
        "cut_offs",
        "scripts",
    )
    return {name: facts[name] for name in names} | {
        "untrained_at": {int(limit): count for limit, count in facts["untrained_at"].items()},
        "duplicate_examples": _from_one(facts["duplicate_examples"]),
        "near_duplicate_examples": _from_one(facts["near_duplicate_examples"]),
        "longest_rows": [{"row": row + 1, "tokens": length} for row, length in facts["longest_rows"]],
    }


def rendered_row(store: TokenStore, row: int, max_length: int) -> list[Token]:
    """A row (from 0) as tokens; those beyond `max_length` have `cut` set."""
    ids, trained = store.row(row)
    special = set(store.facts["special_ids"])
    shown = ids[:LONGEST_SHOWN].tolist()
    texts = _texts(str(store.folder / "tokenizer.json"), shown)
    return [
        Token(token, text, bool(trained[index]), index >= max_length, token in special)
        for index, (token, text) in enumerate(zip(shown, texts, strict=True))
    ]


def _texts(file: str, ids: list[int]) -> list[str]:
    """The text that each token adds; a character of several tokens is added by the last one."""
    tokenizer = _tokenizer(file)
    stream = decoders.DecodeStream(skip_special_tokens=False)
    return [stream.step(tokenizer, token) or "" for token in ids]


@lru_cache(maxsize=4)
def _tokenizer(file: str) -> Tokenizer:
    return Tokenizer.from_file(file)


def _from_one(pairs: list[list[int]]) -> list[list[int]]:
    return [[row + 1, earlier + 1] for row, earlier in pairs]
