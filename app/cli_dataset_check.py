"""`lathe dataset check`: everything that can be known of a file before anything is trained on it. Keeps nothing."""

import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from app.cli_errors import CommandError
from app.dataset_check_words import page
from training.failure import DataError
from training.inspection import Inspection
from training.issues import ERROR, WARNING, Issue
from worker.checking import check_file

FOUND = ("file_format", "reason", "rows", "columns", "counts", "empty_rows", "trainable")
SETTINGS = ("model", "max_length", "micro_batch", "accumulation", "num_processes", "seed", "eval_split")
COUNTED = (
    "tokens", "truncated_rows", "lost_tokens", "untrained_rows", "untrained_at", "duplicate_rows", "duplicate_examples",
    "near_duplicate_rows", "near_duplicate_examples", "padding_waste", "packing_waste", "scripts", "worst_batches",
)  # fmt: skip
"""What is known once every token is counted; null before."""


@dataclass(frozen=True)
class Wanted:
    """What is to be checked, and the settings of the run that it is checked for."""

    file: Path
    model: str | None
    max_length: int
    micro_batch: int
    accumulation: int
    num_processes: int
    seed: int
    eval_split: float
    columns: str | None
    validation: Path | None


def check(wanted: Wanted, *, as_json: bool) -> int:
    """Prints what was found and returns the exit code: 1 where the file, or the validation file, cannot train.

    Raises:
        CommandError: a file cannot be read.
    """
    found = _inspected(wanted.file, wanted.columns)
    held_out = _inspected(wanted.validation, wanted.columns) if wanted.validation else None
    values = _document(wanted, found)
    if held_out is not None:
        values["problems"] += [asdict(problem) for problem in held_out.problems]
        values["trainable"] &= held_out.trainable
        values["validation"] = {"rows": held_out.rows, "format": held_out.format}
    if wanted.model and values["trainable"]:
        _count(wanted, found, held_out, values)
    click.echo(json.dumps(values) if as_json else page(values, wanted.max_length))
    return 0 if values["trainable"] else 1


def _inspected(file: Path, columns: str | None) -> Inspection:
    if not file.is_file():
        what = "is a folder" if file.is_dir() else "does not exist"
        raise CommandError(f"{what}.", "Give a data file.", field="FILE", value=str(file))
    try:
        return check_file(file, file.name, columns)
    except OSError as error:
        raise CommandError(
            f"cannot be read: {error.strerror}.", "Check its rights.", field="FILE", value=str(file)
        ) from None


def _document(wanted: Wanted, found: Inspection) -> dict[str, Any]:
    """The keys of the answer, null where only the tokens can tell."""
    told = {name: getattr(found, name) for name in FOUND}
    settings = {name: getattr(wanted, name) for name in SETTINGS}
    unknown: dict[str, Any] = dict.fromkeys(COUNTED) | {"tokens": dict.fromkeys(("median", "p95", "max", "total"))}
    return {
        "file": wanted.file.name,
        "format": found.format,
        **told,
        **unknown,
        "longest_rows": None,
        "longest_lengths": None,
        "problems": [asdict(problem) for problem in found.problems],
        "settings": settings,
    }


def _count(wanted: Wanted, found: Inspection, held_out: Inspection | None, values: dict[str, Any]) -> None:
    """Fills in what the tokens tell; what keeps them from being counted is a problem like any other."""
    from app.cli_dataset_tokens import first_untrained, leaked, tokenized
    from worker.token_report import report

    with tempfile.TemporaryDirectory(prefix="lathe-check-") as folder:
        try:
            store = tokenized(wanted.file, Path(folder) / "train", str(wanted.model), wanted.columns, found.rows)
            numbers = report(
                store,
                max_length=wanted.max_length,
                micro_batch=wanted.micro_batch,
                accumulation=wanted.accumulation,
                world=wanted.num_processes,
                seed=wanted.seed,
                eval_split=0 if wanted.validation else wanted.eval_split,
            )
            if wanted.validation and held_out:
                other = tokenized(
                    wanted.validation, Path(folder) / "validation", str(wanted.model), wanted.columns, held_out.rows
                )
                values["validation"] |= leaked(store, other)
        except DataError as error:
            values["problems"].insert(0, asdict(Issue.of(error, error.file)))
            values["trainable"] = False
            return
    values |= {name: numbers[name] for name in COUNTED}
    values["longest_rows"] = [one["row"] for one in numbers["longest_rows"]]
    values["longest_lengths"] = [one["tokens"] for one in numbers["longest_rows"]]
    values["problems"] += _remarks(wanted, values, first_untrained(store, wanted.max_length))
    values["trainable"] = not any(problem["level"] == ERROR for problem in values["problems"])


def _remarks(wanted: Wanted, values: dict[str, Any], first: int | None) -> list[dict[str, Any]]:
    """What the tokens show to be wrong: rows that teach nothing, and rows that are in both files."""
    remarks = []
    untrained, rows = values["untrained_rows"], values["rows"] - values["empty_rows"]
    if untrained:
        level, teach = ERROR if untrained == rows else WARNING, "teaches" if untrained == 1 else "teach"
        message = f"{untrained:,} of {rows:,} rows {teach} nothing at {wanted.max_length:,} tokens: the answer is cut off."
        fix = "Raise --max-length, or shorten the prompts."
        remarks.append(asdict(Issue(level, wanted.file.name, first, "", message, fix, untrained)))
    shared = values.get("validation", {}).get("leaked_rows")
    if shared and wanted.validation:
        message = f"{shared:,} rows are in {wanted.file.name} too: an evaluation on them is too kind."
        fix = "Take them out of one of the two files."
        remarks.append(asdict(Issue(WARNING, wanted.validation.name, None, "", message, fix, shared)))
    return remarks
