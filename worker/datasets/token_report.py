"""Statistics of a tokenized data set for given settings, and its rows as tokens."""

from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders

from training.errors import DataError
from training.tokens import lengths as numbers
from training.tokens.order import worst_batches
from training.tokens.selection import Selection, select
from training.tokens.store import TokenStore, open_store

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
    store: Path | TokenStore,
    *,
    max_length: int,
    micro_batch: int,
    accumulation: int = 1,
    world: int = 1,
    seed: int = 42,
    epochs: float = 3.0,
    max_steps: int | None = None,
    eval_split: float = 0.0,
    data_slice: str | None = None,
    max_samples: int | None = None,
    strata: Any = None,
    train_on_prompt: bool = False,
    pads: bool = False,
) -> dict[str, Any]:
    """The statistics of a data set for these settings. Row numbers count from 1.

    Batches are flat as in a run by default, or padded to the longest row with `pads`. The position of a batch is exact for a run
    with the same settings, `eval_split` included.
    """
    opened = open_store(store) if isinstance(store, Path) else store
    lengths = opened.lengths
    first = opened.first_trained_with(train_on_prompt=train_on_prompt)
    chosen, problem = _chosen(
        opened, first, max_length, seed, eval_split, data_slice=data_slice, max_samples=max_samples, strata=strata
    )
    rows = chosen.train if chosen else np.empty(0, np.int64)
    cut = np.minimum(lengths[rows], max_length)
    batches = worst_batches(
        cut,
        micro_batch=micro_batch,
        accumulation=accumulation,
        world=world,
        seed=seed,
        epochs=epochs,
        max_steps=max_steps,
        pads=pads,
    )
    return _facts(opened.facts) | {
        "truncated_rows": numbers.truncated(lengths, max_length),
        "lost_tokens": numbers.lost_tokens(lengths, max_length),
        "untrained_rows": numbers.untrained(first, lengths, max_length),
        "train_rows": len(rows),
        "held_out_rows": len(chosen.held_out) if chosen else 0,
        "problem": problem,
        "padding_waste": numbers.padding_waste(cut, micro_batch, seed, max_length),
        "packing_waste": numbers.packing_waste(cut, max_length),
        "worst_batches": [asdict(batch) | {"rows": [int(rows[row]) + 1 for row in batch.rows]} for batch in batches],
    }


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


def rendered_row(store: Path | TokenStore, row: int, max_length: int, *, train_on_prompt: bool = False) -> list[Token]:
    """A row (from 0) as tokens; those beyond `max_length` have `cut` set."""
    opened = open_store(store) if isinstance(store, Path) else store
    ids, trained = opened.row(row)
    special = set(opened.facts["special_ids"])
    shown = ids[:LONGEST_SHOWN].tolist()
    texts = _texts(str(opened.folder / "tokenizer.json"), shown)
    return [
        Token(token, text, train_on_prompt or bool(trained[index]), index >= max_length, token in special)
        for index, (token, text) in enumerate(zip(shown, texts, strict=True))
    ]


def _chosen(
    opened: TokenStore, first: Any, limit: int, seed: int, split: float, **more: Any
) -> tuple[Selection | None, str]:
    try:
        return select(opened.lengths, first, max_length=limit, seed=seed, eval_split=split, **more), ""
    except DataError as error:
        return None, f"{error.message} {error.fix}"


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
