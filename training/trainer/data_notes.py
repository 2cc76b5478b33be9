"""Notes on the rows of a run, written to its log before training: rows left out, repeated rows, leaked held-out rows, and
the faults of a hub model's rows, which only the run itself can check."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from training.batches.task_rows import TaskRows
from training.config.choices import TemplateCheck
from training.config.run_config import RunConfig
from training.data.rows import DataRows, data_files
from training.errors import UserError
from training.model_info.config_json import local_folder
from training.reports.report import Report
from training.run_folder.record import local_model
from training.template_check.check import check
from training.template_check.findings import ERROR, Fault, Finding
from training.tokens.duplicates import shared_between, shared_rows
from training.tokens.order import Integers
from training.tokens.selection import Selection

_MAX_PAIRS = 3  # named in the note on shared rows


class NumberedRows(NamedTuple):
    """Some rows of data: their numbers, what the numbers stand for, and the hashes of all rows of the data."""

    numbers: DataRows
    rows: Integers
    hashes: NDArray[np.uint64]


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
            report.warn(f"{count:,} rows {reason}.")


def repeated_rows(train: NumberedRows, report: Report) -> None:
    """Warns about training rows that occur in two data sets; training sees them more often than their weights say."""
    for first, second, count in shared_between(
        train.hashes[train.rows], np.searchsorted(train.rows, train.numbers.ends)
    ):
        names = [file.name for file in train.numbers.files]
        report.warn(f"{count:,} training rows of {names[second]} are also in {names[first]}.")


def shared_with_held_out(train: NumberedRows, held_out: NumberedRows, report: Report) -> None:
    """Warns about held-out rows that are also in the training data: the evaluation then measures memorization."""
    in_train, in_held_out = shared_rows(train.hashes[train.rows], held_out.hashes[held_out.rows])
    if not len(in_held_out):
        return
    pairs = [
        f"{held_out.numbers.words(int(held_out.rows[there]))} is {train.numbers.words(int(train.rows[here]))}"
        for here, there in zip(in_train, in_held_out, strict=True)
    ]
    named = ", ".join(pairs[:_MAX_PAIRS]) + (", ..." if len(pairs) > _MAX_PAIRS else "")
    message = (
        f"{len(pairs):,} held-out rows are also in the training data ({named}): evaluation looks better than it is."
    )
    report.warn(message)


def check_rows(config: RunConfig, tokenizer: PreTrainedTokenizerBase, report: Report) -> None:
    """Notes the faults of template, tokenizer and settings in some training rows of a hub model.

    Raises:
        UserError: a fault is an error, and `template_check` is strict.
    """
    if not config.task.traits.renders_rows or local_folder(config.model):
        return
    local = config.model_copy(update={"model": str(folder)}) if (folder := local_model(config)) else config
    for file in data_files(config.sources, config.columns):
        note_findings(config, check(local, file.path, file.columns, tokenizer).findings, report)


def note_findings(config: RunConfig, findings: Iterable[Finding], report: Report) -> None:
    """Notes faults of rows on the run.

    Raises:
        UserError: a fault is an error, and `template_check` is strict.
    """
    for finding in findings:
        message = f"{finding.sentence} ({finding.fault.value})"
        blocks = finding.severity == ERROR and finding.fault is not Fault.NOT_CHECKED
        if blocks and config.template_check is TemplateCheck.STRICT:
            fix = f"{finding.fix} To train all the same, set template_check to warn."
            raise UserError(finding.setting, None, message, fix)
        report.warn(f"{message} {finding.fix}")
