"""What a tokenized set says for given settings, read from its store: numbers for page and command, and rows as tokens."""

from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders

from training import lengths as numbers
from training.failure import DataError
from training.order import worst_batches
from training.selection import Selection, select
from training.token_store import TokenStore, open_store

LONGEST_SHOWN = 20_000  # tokens of a row that are rendered


@dataclass(frozen=True)
class Token:
    """A token of a row as people see it. `text` is empty where a character goes on in the next token."""

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
    """The numbers of a set for these settings. Row numbers count from 1.

    Batches are laid out as a run does by default, each row behind the other; one that `pads` fills them up to the longest.
    The place of a batch is exact for the rows that a run with these settings trains on: `eval_split` and the others decide it.
    """
    opened = open_store(store) if isinstance(store, Path) else store
    facts, lengths = opened.facts, opened.lengths
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
    return {
        "tokens": facts["tokens"],
        "rows": facts["rows"],
        "empty_rows": facts["empty_rows"],
        "truncated_rows": numbers.truncated(lengths, max_length),
        "lost_tokens": numbers.lost_tokens(lengths, max_length),
        "untrained_rows": numbers.untrained(first, lengths, max_length),
        "untrained_at": {int(limit): count for limit, count in facts["untrained_at"].items()},
        "train_rows": len(rows),
        "held_out_rows": len(chosen.held_out) if chosen else 0,
        "problem": problem,
        "duplicate_rows": facts["duplicate_rows"],
        "duplicate_examples": _from_one(facts["duplicate_examples"]),
        "near_duplicate_rows": facts["near_duplicate_rows"],
        "near_duplicate_examples": _from_one(facts["near_duplicate_examples"]),
        "longest_rows": [{"row": row + 1, "tokens": length} for row, length in facts["longest_rows"]],
        "histogram": facts["histogram"],
        "cut_offs": facts["cut_offs"],
        "padding_waste": numbers.padding_waste(cut, micro_batch, seed, max_length),
        "packing_waste": numbers.packing_waste(cut, max_length),
        "scripts": facts["scripts"],
        "worst_batches": [asdict(batch) | {"rows": [int(rows[row]) + 1 for row in batch.rows]} for batch in batches],
    }


def rendered_row(store: Path | TokenStore, row: int, max_length: int, *, train_on_prompt: bool = False) -> list[Token]:
    """A row (from 0) as tokens; what lies beyond `max_length` is cut."""
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
    """What each token adds to the text; a character of several tokens comes with the last of them."""
    tokenizer = _tokenizer(file)
    stream = decoders.DecodeStream(skip_special_tokens=False)
    return [stream.step(tokenizer, token) or "" for token in ids]


@lru_cache(maxsize=4)
def _tokenizer(file: str) -> Tokenizer:
    return Tokenizer.from_file(file)


def _from_one(pairs: list[list[int]]) -> list[list[int]]:
    return [[row + 1, earlier + 1] for row, earlier in pairs]
