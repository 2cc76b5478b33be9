"""Notes on the rows of a run, written to its log before training: rows left out, repeated rows, leaked held-out rows."""

import numpy as np
from numpy.typing import NDArray

from training.batches.task_rows import TaskRows
from training.config.run_config import RunConfig
from training.data.rows import DataRows
from training.reports.report import Report
from training.run_folder.events import Note
from training.tokens.duplicates import shared_between, shared_rows
from training.tokens.order import Integers
from training.tokens.selection import Selection

_MAX_PAIRS = 3  # named in the note on shared rows

Hashes = NDArray[np.uint64]


def left_out_rows(selection: Selection, rows: TaskRows, config: RunConfig, report: Report) -> None:
    """Warns about rows that are skipped or truncated."""
    limit = f"max_length {config.max_length:,}"
    for count, reason in (
        (rows.empty_rows, "have an empty prompt or answer and are skipped"),
        (selection.without_loss, "carry no loss (a weight of 0, or no turn to learn) and are skipped"),
        (selection.untrained, f"have no loss tokens within {limit} and are skipped"),
        (selection.truncated, f"are longer than {limit} and are truncated"),
    ):
        if count:
            report.for_run(Note(message=f"{count:,} rows {reason}.", level="warning"))


def repeated_rows(numbered: DataRows, rows: Integers, hashes: Hashes, report: Report) -> None:
    """Warns about training rows that occur in two data sets; training sees them more often than their weights say."""
    for first, second, count in shared_between(hashes[rows], np.searchsorted(rows, numbered.ends)):
        names = numbered.files[first].name, numbered.files[second].name
        message = f"{count:,} training rows of {names[1]} are also in {names[0]}."
        report.for_run(Note(message=message, level="warning"))


def shared_with_held_out(
    numbered: DataRows,
    rows: Integers,
    hashes: Hashes,
    held_out_numbered: DataRows,
    held_out: Integers,
    held_out_hashes: Hashes,
    report: Report,
) -> None:
    """Warns about held-out rows that are also in the training data: the evaluation then measures memorization."""
    in_train, in_held_out = shared_rows(hashes[rows], held_out_hashes[held_out])
    if not len(in_held_out):
        return
    pairs = [
        f"{held_out_numbered.words(int(held_out[there]))} is {numbered.words(int(rows[here]))}"
        for here, there in zip(in_train, in_held_out, strict=True)
    ]
    named = ", ".join(pairs[:_MAX_PAIRS]) + (", ..." if len(pairs) > _MAX_PAIRS else "")
    message = (
        f"{len(pairs):,} held-out rows are also in the training data ({named}): evaluation looks better than it is."
    )
    report.for_run(Note(message=message, level="warning"))
