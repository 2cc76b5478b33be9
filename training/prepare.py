"""What has to be in place before the first step: the tokens, split the same way on every rank, and the checkpoint to go on from."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import PreTrainedTokenizerBase

from training import manifest
from training.config import RunConfig
from training.data import TokenList
from training.distributed import main_rank_works
from training.duplicates import shared_rows
from training.events import Note
from training.example import Example
from training.failure import DataError
from training.parts import Part
from training.report import Report
from training.rows import read_numbered
from training.selection import Selection, held_out_count, select, sliced_rows
from training.streaming import Reader, Share, Stream, count_rows, steps
from training.task_data import TaskRows, open_rows
from training.token_store import VARIABLE, TokenStore
from training.tokenizing import find_or_make
from training.views import View

_PAIRS_NAMED = 3


@dataclass(frozen=True)
class Data:
    """Rows to train on and to evaluate on, and where the held-out ones come from."""

    train: View | Stream
    held_out: View | TokenList | None
    held_out_file: Path
    columns: str | None
    truncated_rows: int
    skipped_rows: int
    max_steps: int | None = None
    """Steps of a stream, which has no end of its own."""
    classes: tuple[str, ...] = ()
    """What a classifier tells apart."""

    def held_out_examples(self) -> Iterator[tuple[int, Example]]:
        """The held-out rows as they stand in their file, with their place in it from 0."""
        rows = set(self.held_out.rows.tolist()) if self.held_out else set()
        for number, _, example in read_numbered(self.held_out_file, self.columns):
            if example and number in rows:
                yield number, example


def prepare_data(config: RunConfig, run_dir: Path, tokenizer: PreTrainedTokenizerBase, report: Report) -> Data:
    """Finds or makes the tokens, takes the rows that are asked for and splits them by the seed, on every rank alike."""
    if config.streaming:
        return _prepare_stream(config, run_dir, tokenizer, report)

    def find(file: Path, part: Part) -> TokenStore:
        return _tokens(file, part, config, run_dir, tokenizer, report)

    source = Path(config.data)
    rows = open_rows(config, source, find)
    chosen = _selected(source, rows, config, eval_split=0 if config.validation_data else config.eval_split)
    held_out_file, held_out_rows, held_out = source, rows, chosen.held_out
    if config.validation_data:
        held_out_file = Path(config.validation_data)
        held_out_rows = open_rows(config, held_out_file, find, rows.classes or None)
        whole = config.model_copy(update={"data_slice": None, "max_samples": None})
        held_out = _selected(held_out_file, held_out_rows, whole, eval_split=0).train
    train, evaluated = rows.view(chosen.train), held_out_rows.view(held_out)
    _remark(chosen, rows, config, report)
    _remark_leak(train, rows, evaluated, held_out_rows, report)
    return Data(
        train,
        evaluated if len(held_out) else None,
        held_out_file,
        config.columns,
        chosen.truncated,
        chosen.untrained,
        classes=rows.classes,
    )


def _prepare_stream(config: RunConfig, run_dir: Path, tokenizer: PreTrainedTokenizerBase, report: Report) -> Data:
    """A stream of the rows after the held-out ones, which are the first; validation data are tokenized as always."""
    source = Path(config.data)
    rows = sliced_rows(config.data_slice, count_rows(source))
    reader = Reader(
        source,
        config.columns,
        tokenizer,
        config.max_length,
        train_on_prompt=config.train_on_prompt,
        template_kwargs=config.chat_template_kwargs,
    )
    held_out: View | TokenList
    if config.validation_data:
        first, held_out_file = 0, Path(config.validation_data)
        kept = TaskRows(config, (_tokens(held_out_file, Part.WHOLE, config, run_dir, tokenizer, report),))
        whole = config.model_copy(update={"data_slice": None})
        held_out = kept.view(_selected(held_out_file, kept, whole, eval_split=0).train)
    else:
        first, held_out_file = held_out_count(config.eval_split, rows), source
        found = [(row, tokens) for row, tokens in enumerate(reader.tokens(reader.examples(0, first))) if tokens]
        held_out = TokenList(np.array([row for row, _ in found], np.int64), [tokens for _, tokens in found])
    share = Share(report.rank, config.num_processes, config.micro_batch_size, config.gradient_accumulation_steps)
    stream = Stream(reader, first, rows, config.seed, share)
    evaluated = held_out if held_out.num_rows else None
    max_steps = config.max_steps or steps(stream.num_rows, config.epochs, config.global_batch_size)
    return Data(stream, evaluated, held_out_file, config.columns, 0, 0, max_steps)


def prepare_resume(run_dir: Path, state: PartialState) -> tuple[Path | None, list[str]]:
    """The checkpoint to go on from, chosen by rank 0 for all; leftovers of an interrupted save are deleted."""
    found: list[tuple[Path | None, list[str]]] = [(None, [])]
    with main_rank_works("checkpoint chosen") as mine:
        if mine:
            found = [manifest.newest_checkpoint(run_dir)]
            for leftover in manifest.unsealed(run_dir):
                manifest.discard(leftover)
    if state.num_processes > 1:
        broadcast_object_list(found)
    return found[0]


def _tokens(
    source: Path, part: Part, config: RunConfig, run_dir: Path, tokenizer: PreTrainedTokenizerBase, report: Report
) -> TokenStore:
    root = Path(os.environ.get(VARIABLE) or run_dir / "tokens")
    model, revision, columns = config.model, config.revision, config.columns
    kwargs = config.chat_template_kwargs
    return find_or_make(source, root, tokenizer, model, revision, columns, report.progress, part, kwargs)


def _selected(source: Path, rows: TaskRows, config: RunConfig, *, eval_split: float) -> Selection:
    try:
        return select(
            rows.lengths,
            rows.first_trained,
            max_length=rows.limit,
            seed=config.seed,
            eval_split=eval_split,
            data_slice=config.data_slice,
            max_samples=config.max_samples,
            strata=read_strata(source, config.stratify_by) if config.stratify_by and eval_split else None,
        )
    except DataError as error:
        raise DataError(error.message, error.fix, file=source.name, field=error.field) from None


def read_strata(source: Path, column: str) -> list[str]:
    """The value of a column in every row, as text; empty where a row has none.

    Raises:
        DataError: no row has that column.
    """
    values, seen = [], False
    for _, row, _ in read_numbered(source):
        seen = seen or column in row
        values.append(str(row.get(column, "")))
    if not seen:
        message = f"has no column {column!r}."
        raise DataError(message, "Give stratify_by the name of a column.", file=source.name, field="stratify_by")
    return values


def _remark(chosen: Selection, rows: TaskRows, config: RunConfig, report: Report) -> None:
    limit = f"{config.max_length:,} tokens"
    if empty := rows.empty_rows:
        report.once(Note(message=f"{empty:,} rows have an empty prompt or answer and are left out.", level="warning"))
    if chosen.untrained:
        message = f"{chosen.untrained:,} rows have no token of an answer within {limit} and are left out."
        report.once(Note(message=message, level="warning"))
    if chosen.truncated:
        report.once(
            Note(message=f"{chosen.truncated:,} rows are longer than {limit} and are cut off.", level="warning")
        )


def _remark_leak(train: View, rows: TaskRows, held_out: View, held_out_rows: TaskRows, report: Report) -> None:
    """Says which held-out rows are trained on too: the evaluation then measures what was learned by heart."""
    first, again = shared_rows(rows.hashes[train.rows], held_out_rows.hashes[held_out.rows])
    if not len(again):
        return
    pairs = [
        f"row {held_out.rows[there] + 1} is row {train.rows[here] + 1}"
        for here, there in zip(first, again, strict=True)
    ]
    named = ", ".join(pairs[:_PAIRS_NAMED]) + (", ..." if len(pairs) > _PAIRS_NAMED else "")
    message = (
        f"{len(pairs):,} held-out rows are in the training data too ({named}): evaluation looks better than it is."
    )
    report.once(Note(message=message, level="warning"))
