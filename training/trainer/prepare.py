"""Prepares a run: tokenizes and splits its data the same way on every rank, and finds the checkpoint to resume from."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import PreTrainedTokenizerBase

from training.batches.streaming import Reader, Share, Stream, count_rows, steps
from training.batches.task_rows import TaskRows, open_rows
from training.batches.views import TokenList, View
from training.config.run_config import RunConfig
from training.data.example import Example
from training.data.rows import read_numbered
from training.errors import DataError
from training.ranks.distributed import main_rank_works
from training.reports.report import Report
from training.run_folder import checkpoints
from training.run_folder.events import Note
from training.run_folder.paths import tokens_dir
from training.tokens.duplicates import shared_rows
from training.tokens.make_store import find_or_make
from training.tokens.selection import Selection, held_out_count, select, sliced_rows
from training.tokens.store import VARIABLE, TokenStore
from training.tokens.task_parts import StoredText

_MAX_PAIRS = 3  # named in the note on shared rows


@dataclass(frozen=True)
class Data:
    """The training rows and the held-out rows, and the file of the latter."""

    train: View | Stream
    held_out: View | TokenList | None
    held_out_file: Path
    columns: str | None
    truncated_rows: int
    skipped_rows: int
    max_steps: int | None = None
    """The steps of a stream, which has no end; else None."""
    classes: tuple[str, ...] = ()
    """The classes of a classifier."""

    def held_out_examples(self) -> Iterator[tuple[int, Example]]:
        """Yields the held-out rows as in their file, with their index in it, from 0."""
        rows = set(self.held_out.rows.tolist()) if self.held_out else set()
        for number, _, example in read_numbered(self.held_out_file, self.columns):
            if example and number in rows:
                yield number, example


def prepare_data(config: RunConfig, run_dir: Path, tokenizer: PreTrainedTokenizerBase, report: Report) -> Data:
    """Finds or makes the tokens, selects the configured rows and splits them by the seed, the same on every rank."""
    if config.streaming:
        return _prepare_stream(config, run_dir, tokenizer, report)

    def find(file: Path, part: StoredText) -> TokenStore:
        return _tokens(file, part, config, run_dir, tokenizer, report)

    source = Path(config.data)
    rows = open_rows(config, source, find)
    selection = _selected(source, rows, config, eval_split=0 if config.validation_data else config.eval_split)
    held_out_file, held_out_rows, held_out = source, rows, selection.held_out
    if config.validation_data:
        held_out_file = Path(config.validation_data)
        held_out_rows = open_rows(config, held_out_file, find, rows.classes or None)
        all_rows = config.model_copy(update={"data_slice": None, "max_samples": None})
        held_out = _selected(held_out_file, held_out_rows, all_rows, eval_split=0).train
    train, evaluated = rows.view(selection.train), held_out_rows.view(held_out)
    _note_left_out_rows(selection, rows, config, report)
    _note_shared_rows(train, rows, evaluated, held_out_rows, report)
    return Data(
        train,
        evaluated if len(held_out) else None,
        held_out_file,
        config.columns,
        selection.truncated,
        selection.untrained,
        classes=rows.classes,
    )


def _prepare_stream(config: RunConfig, run_dir: Path, tokenizer: PreTrainedTokenizerBase, report: Report) -> Data:
    """Prepares a stream. The first rows are held out, or else the validation data, which is tokenized as usual."""
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
        validation = TaskRows(config, (_tokens(held_out_file, StoredText.WHOLE, config, run_dir, tokenizer, report),))
        all_rows = config.model_copy(update={"data_slice": None})
        held_out = validation.view(_selected(held_out_file, validation, all_rows, eval_split=0).train)
    else:
        first, held_out_file = held_out_count(config.eval_split, rows), source
        numbered = [(row, tokens) for row, tokens in enumerate(reader.tokens(reader.examples(0, first))) if tokens]
        held_out = TokenList(np.array([row for row, _ in numbered], np.int64), [tokens for _, tokens in numbered])
    share = Share(report.rank, config.num_processes, config.micro_batch_size, config.gradient_accumulation_steps)
    stream = Stream(reader, first, rows, config.seed, share)
    evaluated = held_out if held_out.num_rows else None
    max_steps = config.max_steps or steps(stream.num_rows, config.epochs, config.global_batch_size)
    return Data(stream, evaluated, held_out_file, config.columns, 0, 0, max_steps)


def prepare_resume(run_dir: Path, state: PartialState) -> tuple[Path | None, list[str]]:
    """Returns the checkpoint to resume from, or None, and why newer ones were rejected. Rank 0 chooses for all ranks.

    Deletes the leftovers of an interrupted save.
    """
    choice: list[tuple[Path | None, list[str]]] = [(None, [])]
    with main_rank_works("checkpoint chosen") as is_main:
        if is_main:
            choice = [checkpoints.newest_checkpoint(run_dir)]
            for leftover in checkpoints.unsealed(run_dir):
                checkpoints.discard(leftover)
    if state.num_processes > 1:
        broadcast_object_list(choice)
    return choice[0]


def _tokens(
    source: Path, part: StoredText, config: RunConfig, run_dir: Path, tokenizer: PreTrainedTokenizerBase, report: Report
) -> TokenStore:
    root = Path(os.environ.get(VARIABLE) or tokens_dir(run_dir))
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
    """Returns the value of a column in every row as text, empty for rows without it.

    Raises:
        DataError: no row has that column.
    """
    values, exists = [], False
    for _, row, _ in read_numbered(source):
        exists = exists or column in row
        values.append(str(row.get(column, "")))
    if not exists:
        message = f"has no column {column!r}."
        raise DataError(message, "Set stratify_by to an existing column.", file=source.name, field="stratify_by")
    return values


def _note_left_out_rows(selection: Selection, rows: TaskRows, config: RunConfig, report: Report) -> None:
    limit = f"max_length {config.max_length:,}"
    for count, reason in (
        (rows.empty_rows, "have an empty prompt or answer and are skipped"),
        (selection.untrained, f"have no loss tokens within {limit} and are skipped"),
        (selection.truncated, f"are longer than {limit} and are truncated"),
    ):
        if count:
            report.for_run(Note(message=f"{count:,} rows {reason}.", level="warning"))


def _note_shared_rows(train: View, rows: TaskRows, held_out: View, held_out_rows: TaskRows, report: Report) -> None:
    """Warns about held-out rows that are also in the training data: the evaluation then measures memorization."""
    in_train, in_held_out = shared_rows(rows.hashes[train.rows], held_out_rows.hashes[held_out.rows])
    if not len(in_held_out):
        return
    pairs = [
        f"row {held_out.rows[there] + 1} is row {train.rows[here] + 1}"
        for here, there in zip(in_train, in_held_out, strict=True)
    ]
    named = ", ".join(pairs[:_MAX_PAIRS]) + (", ..." if len(pairs) > _MAX_PAIRS else "")
    message = (
        f"{len(pairs):,} held-out rows are also in the training data ({named}): evaluation looks better than it is."
    )
    report.for_run(Note(message=message, level="warning"))
