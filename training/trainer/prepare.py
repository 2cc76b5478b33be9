"""Prepares a run: tokenizes and splits its data the same way on every rank, and finds the checkpoint to resume from."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import PreTrainedTokenizerBase

from training.batches.streaming import Reader, Share, Stream, count_rows
from training.batches.task_rows import Find, TaskRows, open_rows
from training.batches.views import TokenList, View
from training.chat.rendering_settings import ChatSettings
from training.config.run_config import NEAR_DUPLICATES, RunConfig
from training.config.task import StoredText
from training.data.example import Example
from training.data.rows import DataFile, DataRows, data_files, read_files
from training.errors import DataError
from training.ranks.distributed import main_rank_works
from training.reports.report import Report
from training.run_folder import checkpoints
from training.run_folder.checkpoint_layout import CheckpointLayout, check_resume
from training.run_folder.paths import tokens_dir
from training.template_check.gap_findings import gap_findings
from training.tokens.coverage import gap_counts
from training.tokens.groups import groups_of_values, known_near_groups, near_groups
from training.tokens.make_store import find_or_make
from training.tokens.order import Integers
from training.tokens.run_rows import RowLengths, held_out_share, leaked_rows, selected_rows, steps_of, validation_rows
from training.tokens.selection import Selection, SetRows, held_out_count, sliced_rows
from training.tokens.store import VARIABLE, TokenStore, joined, parts_of
from training.trainer.data_notes import (
    NumberedRows,
    left_out_rows,
    note_findings,
    repeated_rows,
    shared_with_held_out,
)


@dataclass(frozen=True)
class Data:
    """The training rows and the held-out rows, and the files of both."""

    train: View | Stream
    held_out: View | TokenList | None
    files: DataRows
    held_out_files: DataRows
    truncated_rows: int
    skipped_rows: int
    max_steps: int | None = None
    """The steps of a stream, which has no end; else None."""
    classes: tuple[str, ...] = ()
    """The classes of a classifier."""

    def held_out_examples(self) -> Iterator[tuple[int, Example]]:
        """Yields the held-out rows in the order of their files, with their number over all files, from 0."""
        rows = set(self.held_out.rows.tolist()) if self.held_out else set()
        for number, _, _, _, example in read_files(self.held_out_files.files):
            if example and number in rows:
                yield number, example


def prepare_data(config: RunConfig, run_dir: Path, tokenizer: PreTrainedTokenizerBase, report: Report) -> Data:
    """Finds or makes the tokens, selects the configured rows and splits them by the seed, the same on every rank."""
    find = partial(_tokens, config, run_dir, tokenizer, report)
    files = data_files(config.sources, config.columns)
    if config.streaming:
        return _prepare_stream(config, files, tokenizer, find, report.rank)
    rows = open_rows(config, files, find)
    selection = _selected(files, rows, config, report)
    held_out_files, held_out_rows, held_out = files, rows, selection.held_out
    if config.validation_data:
        held_out_files = data_files(config.validation_sources, config.columns)
        held_out_rows = open_rows(config, held_out_files, find, rows.classes or None)
        held_out = _all_rows(held_out_files, held_out_rows, config)
    numbered, held_out_numbered = DataRows(files, rows.ends), DataRows(held_out_files, held_out_rows.ends)
    held_out = _without_leaks(config, (rows, selection.train), (held_out_rows, held_out), report)
    train = NumberedRows(numbered, selection.train, rows.hashes)
    left_out_rows(selection, rows, config, report)
    repeated_rows(train, report)
    shared_with_held_out(train, NumberedRows(held_out_numbered, held_out, held_out_rows.hashes), report)
    return Data(
        rows.view(selection.train),
        held_out_rows.view(held_out, trains=False) if len(held_out) else None,
        numbered,
        held_out_numbered,
        selection.truncated,
        selection.untrained + selection.without_loss,
        classes=rows.classes,
    )


def training_rows(config: RunConfig, run_dir: Path, tokenizer: PreTrainedTokenizerBase, report: Report) -> Integers:
    """The numbers of the rows that a run trains on, over all of its files. Raises DataError as `prepare_data`."""
    files = data_files(config.sources, config.columns)
    if config.streaming:
        return np.arange(*_streamed(config, files[0].path))
    rows = open_rows(config, files, partial(_tokens, config, run_dir, tokenizer, report))
    return _selected(files, rows, config, report).train


def _streamed(config: RunConfig, source: Path) -> tuple[int, int]:
    """The first row of a stream that trains, and the number at which the rows end. Raises DataError as `count_rows`."""
    rows = sliced_rows(config.data_slice, count_rows(source))
    return held_out_count(held_out_share(config), rows), rows


def _prepare_stream(
    config: RunConfig, files: tuple[DataFile, ...], tokenizer: PreTrainedTokenizerBase, find: Find, rank: int
) -> Data:
    """Prepares a stream. The first rows are held out, or else the validation data, which is tokenized as usual."""
    (source,) = files
    first, rows = _streamed(config, source.path)
    reader = Reader(source, tokenizer, config)
    held_out: View | TokenList
    numbered = held_out_numbered = DataRows(files, (rows,))
    if config.validation_data:
        held_out_files = data_files(config.validation_sources, config.columns)
        validation = TaskRows(config, (joined([find(file, StoredText.WHOLE) for file in held_out_files]),))
        held_out = validation.view(_all_rows(held_out_files, validation, config))
        held_out_numbered = DataRows(held_out_files, validation.ends)
    else:
        tokenized = [(row, tokens) for row, tokens in enumerate(reader.tokens(reader.examples(0, first))) if tokens]
        held_out = TokenList(np.array([row for row, _ in tokenized], np.int64), [tokens for _, tokens in tokenized])
    share = Share(rank, config.num_processes, config.micro_batch_size, config.gradient_accumulation_steps)
    stream = Stream(reader, first, rows, config.seed, share)
    evaluated = held_out if held_out.num_rows else None
    max_steps = steps_of(config, stream.num_rows)
    return Data(stream, evaluated, numbered, held_out_numbered, 0, 0, max_steps)


def prepare_resume(config: RunConfig, run_dir: Path, state: PartialState) -> tuple[Path | None, list[str]]:
    """Returns the checkpoint to resume from, or None, and why newer ones were rejected. Rank 0 chooses for all ranks.

    Deletes the leftovers of an interrupted save.

    Raises:
        UserError: the run's settings do not allow to continue from it.
    """
    choice: list[tuple[Path | None, list[str]]] = [(None, [])]
    with main_rank_works("checkpoint chosen") as is_main:
        if is_main:
            choice = [checkpoints.newest_checkpoint(run_dir)]
            for leftover in checkpoints.unsealed(run_dir):
                checkpoints.discard(leftover)
    if state.num_processes > 1:
        broadcast_object_list(choice)
    if choice[0][0] and (layout := CheckpointLayout.read(choice[0][0])):
        check_resume(layout, config)
    return choice[0]


def _tokens(
    config: RunConfig,
    run_dir: Path,
    tokenizer: PreTrainedTokenizerBase,
    report: Report,
    file: DataFile,
    part: StoredText,
) -> TokenStore:
    """Finds or makes the token store of a part of a file's rows."""
    root = Path(os.environ.get(VARIABLE) or tokens_dir(run_dir))
    model, revision, chat = config.model, config.revision, ChatSettings.of(config)
    store = find_or_make(file.path, root, tokenizer, model, revision, file.columns, report.progress, part, chat)
    if config.task.traits.renders_rows:
        note_findings(config, gap_findings(gap_counts(store.facts["gaps"])), report)
    return store


def _all_rows(files: Sequence[DataFile], rows: TaskRows, config: RunConfig) -> Integers:
    """The rows of validation data that are evaluated."""
    with _naming(files):
        return validation_rows(config, _in_sets(files, rows))


def _selected(files: Sequence[DataFile], rows: TaskRows, config: RunConfig, report: Report) -> Selection:
    strata = groups = near = None
    if held_out_share(config):
        strata = read_column(files, config.stratify_by, "stratify_by") if config.stratify_by else None
        if config.group_by == NEAR_DUPLICATES:
            near = near_groups(rows.stores[0], report.progress)
        elif config.group_by:
            groups = groups_of_values(read_column(files, config.group_by, "group_by"))
    with _naming(files):
        return selected_rows(config, replace(_in_sets(files, rows), strata=strata, groups=groups, near=near))


def _without_leaks(
    config: RunConfig, train: tuple[TaskRows, Integers], held_out: tuple[TaskRows, Integers], report: Report
) -> Integers:
    """The held-out rows without those that are near duplicates of training rows, or all of them with a note on these, as far as
    they are known.

    Raises:
        DataError: no row is left.
    """
    (rows, trained), (other, numbers) = train, held_out
    if not len(numbers):
        return numbers
    first = rows.stores[0].rows if other is not rows else 0
    store = joined([*parts_of(rows.stores[0]), *(parts_of(other.stores[0]) if first else ())])
    near = near_groups(store, report.progress) if config.exclude_leaked_rows else known_near_groups(store)
    leaked = leaked_rows(trained, first + numbers, near) if near is not None else np.zeros(len(numbers), bool)
    if not leaked.any():
        return numbers
    found = f"{leaked.sum():,} of {len(leaked):,} held-out rows are near duplicates of training rows"
    if not config.exclude_leaked_rows:
        report.warn(f"{found}: evaluation looks better than it is. Set exclude_leaked_rows to leave them out.")
        return numbers
    if leaked.all():
        fix = "Choose other evaluation data, or set exclude_leaked_rows to false."
        raise DataError(f"has no row to evaluate: {found}.", fix, field="exclude_leaked_rows")
    report.note(f"{found}, and are left out.")
    return numbers[~leaked]


def _in_sets(files: Sequence[DataFile], rows: TaskRows) -> RowLengths:
    counts = np.diff(rows.ends, prepend=0)
    sets = tuple(SetRows(int(count), file.max_rows, file.name) for count, file in zip(counts, files, strict=True))
    return replace(rows.tokens, sets=sets)


@contextmanager
def _naming(files: Sequence[DataFile]) -> Iterator[None]:
    """Names the only file in an error that names none."""
    try:
        yield
    except DataError as error:
        file = error.file if len(files) > 1 else files[0].path.name
        raise DataError(error.message, error.fix, file=file, field=error.field) from None


def read_column(files: Sequence[DataFile], column: str, setting: str) -> list[str]:
    """Returns the value of a column in every row as text, empty for rows without it; `setting` names the column.

    Raises:
        DataError: no row has that column.
    """
    values, exists = [], False
    for _, _, _, row, _ in read_files(files):
        exists = exists or column in row
        values.append(str(row.get(column, "")))
    if not exists:
        message = f"has no column {column!r}."
        fix = f"Set {setting} to an existing column."
        raise DataError(message, fix, file=files[0].path.name, field=setting)
    return values
