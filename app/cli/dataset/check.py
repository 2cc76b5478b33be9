"""`lathe dataset check`: checks a file, and its tokens, before training, as text or JSON. Stores nothing."""

import json
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app.cli.options import CommandError
from app.documents import dataset
from app.format import numbers
from app.format.dataset_text import issue_lines
from training.config.task import Task
from training.data.inspection import Inspection
from training.data.mapping import format_of, parse_mapping
from training.data.survey import ERROR, WARNING, Issue
from training.errors import DataError
from training.template_check.gap_findings import gap_findings
from training.tokens.coverage import gap_counts
from training.tokens.parts import misfit, tasks_of
from worker.datasets.bundles import as_file
from worker.datasets.checking import check_file

if TYPE_CHECKING:
    from training.tokens.store import TokenStore

SETTINGS = ("model", "max_length", "micro_batch", "accumulation", "num_processes", "seed", "eval_split")
COUNTED = (
    "tokens", "truncated_rows", "lost_tokens", "untrained_rows", "untrained_at", "duplicate_rows", "duplicate_examples",
    "near_duplicate_rows", "near_duplicate_examples",
    "held_out_rows", "leaked_rows", "leaked_rows_ungrouped", "padding_waste", "packing_waste", "scripts", "worst_batches",
)  # fmt: skip
"""The keys that need the tokens; null without a model."""

_ROWS_NAMED = 5


@dataclass(frozen=True)
class Options:
    """The file to check, and the settings of its run."""

    file: Path
    task: str | None
    model: str | None
    max_length: int
    micro_batch: int
    accumulation: int
    num_processes: int
    seed: int
    eval_split: float
    columns: str | None
    validation: Path | None


def check(*, as_json: bool, **given: Any) -> int:
    """Prints the check and returns the exit code: 1 if the file or the validation file has errors."""
    options = Options(**given)
    try:
        with as_file(options.file, options.file.name) as file:
            return _check(replace(options, file=file), as_json=as_json)
    except DataError as error:
        raise CommandError("FILE", str(options.file), error.message, error.fix) from None


def _check(options: Options, *, as_json: bool) -> int:
    inspection = _fitting(_inspected(options.file, options.columns), options)
    held_out = _inspected(options.validation, options.columns) if options.validation else None
    values = _document(options, inspection)
    if held_out is not None:
        values["problems"] += [asdict(problem) for problem in held_out.problems]
        values["trainable"] &= held_out.trainable
        values["validation"] = {"rows": held_out.rows, "format": held_out.format}
    if options.model and values["trainable"]:
        _count_tokens(options, inspection, held_out, values)
    click.echo(json.dumps(values) if as_json else check_page(values, options.max_length))
    return 0 if values["trainable"] else 1


def _inspected(file: Path, columns: str | None) -> Inspection:
    if not file.is_file():
        problem = "is a folder" if file.is_dir() else "does not exist"
        raise CommandError("FILE", str(file), f"{problem}.", "Give a data file.")
    try:
        return check_file(file, file.name, columns)
    except OSError as error:
        raise CommandError("FILE", str(file), f"cannot be read: {error.strerror}.", "Check its permissions.") from None


def _fitting(inspection: Inspection, options: Options) -> Inspection:
    """The inspection with an error if its rows do not fit the task."""
    if options.task is None or not inspection.trainable:
        return inspection
    row_format = format_of(parse_mapping(options.columns)) if options.columns else inspection.format
    message = misfit(Task(options.task), row_format)
    if message is None:
        return inspection
    fix = f"Choose another file, or a task that it fits: {', '.join(tasks_of(row_format))}."
    issue = Issue(ERROR, options.file.name, None, "", message, fix, inspection.rows)
    return replace(inspection, problems=[issue, *inspection.problems], trainable=False)


def _document(options: Options, inspection: Inspection) -> dict[str, Any]:
    """The JSON document, with null for the keys that need the tokens."""
    settings = {name: getattr(options, name) for name in SETTINGS}
    unknown: dict[str, Any] = dict.fromkeys(COUNTED) | {"tokens": dict.fromkeys(("median", "p95", "max", "total"))}
    return {
        "file": options.file.name,
        **dataset.Check.model_validate(inspection).model_dump(mode="json"),
        **unknown,
        "longest_rows": None,
        "longest_lengths": None,
        "settings": settings,
    }


def _count_tokens(
    options: Options, inspection: Inspection, held_out: Inspection | None, values: dict[str, Any]
) -> None:
    """Sets the values that need the tokens; a failure to tokenize is added to the problems."""
    from app.cli.dataset.tokens import leaked, tokenized
    from worker.datasets.token_report import report

    with tempfile.TemporaryDirectory(prefix="lathe-check-") as folder:
        try:
            store = tokenized(
                options.file, Path(folder) / "train", str(options.model), options.columns, inspection.rows
            )
            measured = report(
                store,
                max_length=options.max_length,
                micro_batch=options.micro_batch,
                accumulation=options.accumulation,
                world=options.num_processes,
                seed=options.seed,
                eval_split=0 if options.validation else options.eval_split,
            )
            if options.validation and held_out:
                other = tokenized(
                    options.validation, Path(folder) / "validation", str(options.model), options.columns, held_out.rows
                )
                values["validation"] |= leaked(store, other)
        except DataError as error:
            values["problems"].insert(0, asdict(Issue.of(error, error.file)))
            values["trainable"] = False
            return
    values |= {name: measured[name] for name in COUNTED}
    values["longest_rows"] = [longest["row"] for longest in measured["longest_rows"]]
    values["longest_lengths"] = [longest["tokens"] for longest in measured["longest_rows"]]
    values["problems"] += [*_rows_without_loss(options, values, store), *_leaked_rows(options, values)]
    values["problems"] += [
        asdict(Issue(gap.severity, options.file.name, gap.row, "", gap.message, gap.fix, gap.rows))
        for gap in gap_findings(gap_counts(store.facts["gaps"]))
    ]
    values["trainable"] = not any(problem["level"] == ERROR for problem in values["problems"])


def _rows_without_loss(options: Options, values: dict[str, Any], store: "TokenStore") -> list[dict[str, Any]]:
    """The problems of rows that would be skipped: of those that never carry loss, and of those whose answer is cut off."""
    from training.tokens.lengths import never_trains, trains

    never = never_trains(store.first_trained, store.lengths)
    cut = (store.lengths > 0) & ~trains(store.first_trained, options.max_length) & ~never
    level = ERROR if (never | cut).sum() == values["rows"] - values["empty_rows"] else WARNING
    at = f"at {options.max_length:,} tokens: the answer is truncated."
    kinds = (
        (never, "at any length: no turn carries loss.", "Check that the answers have the role assistant."),
        (cut, at, "Raise --max-length, or shorten the prompts."),
    )
    problems = []
    for rows, why, fix in kinds:
        if count := int(rows.sum()):
            have = "row has" if count == 1 else "rows have"
            message = f"{count:,} of {len(rows):,} {have} no loss tokens {why}"
            problems.append(asdict(Issue(level, options.file.name, int(rows.argmax()) + 1, "", message, fix, count)))
    return problems


def _leaked_rows(options: Options, values: dict[str, Any]) -> list[dict[str, Any]]:
    """The problem of rows that are in both files."""
    found, rows = values.get("validation", {}), values["held_out_rows"]
    if not options.validation:
        if not (leaked := values["leaked_rows"]):
            return []
        message = (
            f"{leaked:,} of {rows:,} held-out rows are near duplicates of training rows: most rows are near duplicates."
        )
        return [asdict(Issue(WARNING, options.file.name, None, "", message, "Remove repeated rows.", leaked))]
    if not (alike := found.get("near_leaked_rows")):
        return []
    equal, first = found["leaked_rows"], ", ".join(f"{row:,}" for row in found["near_leaked_examples"][:_ROWS_NAMED])
    message = f"{alike:,} rows are near duplicates of rows in {options.file.name}, {equal:,} of them equal (such as {first}): "
    fix = "Remove them, or set exclude_leaked_rows to leave them out of evaluations."
    problem = f"{message}the evaluation loss will be too low."
    return [asdict(Issue(WARNING, options.validation.name, None, "", problem, fix, alike))]


def check_page(values: dict[str, Any], max_length: int) -> str:
    """The check as text; `values` are what --json prints."""
    verdict = "can train" if values["trainable"] else "cannot train"
    lines = [f"{values['file']} {verdict}.", numbers.pairs([pair for pair in _facts(values) if pair[1]])]
    if values["tokens"]["total"] is not None:
        lines += ["", f"At {max_length:,} tokens", numbers.pairs(_tokens(values))]
    if values["problems"]:
        lines += [
            "",
            "Problems" if not values["trainable"] else "Warnings",
            *(f"  {line}" for line in issue_lines(values["problems"])),
        ]
    if values["suggestion"]:
        lines += ["", f"A mapping that fits the first rows: --columns '{values['suggestion']}'"]
    return "\n".join(lines)


def _facts(values: dict[str, Any]) -> list[tuple[str, str]]:
    reason = f", because {values['reason']}" if values["reason"] else ""
    counts = values["counts"] if len(values["counts"]) > 1 else {}
    return [
        ("Format", f"{values['format']}{reason}"),
        ("Columns not used", ", ".join(values["unused"])),
        ("Rows", numbers.count(values["rows"])),
        ("Rows of each", ", ".join(f"{count:,} {name}" for name, count in counts.items())),
        ("Empty rows (skipped)", numbers.count(values["empty_rows"]) if values["empty_rows"] else ""),
    ]


def _held_out(values: dict[str, Any]) -> list[tuple[str, str]]:
    if values["leaked_rows"] is None or not values["held_out_rows"]:
        return []
    leaked, alone = values["leaked_rows"], values["leaked_rows_ungrouped"]
    text = f"{leaked:,} of {values['held_out_rows']:,}; {alone:,} if near duplicates were not kept on one side"
    return [("Held-out rows with a near duplicate in training", text)]


def _tokens(values: dict[str, Any]) -> list[tuple[str, str]]:
    tokens, rows = values["tokens"], values["rows"]
    longest = zip(values["longest_rows"][:_ROWS_NAMED], values["longest_lengths"], strict=False)
    worst = values["worst_batches"][0] if values["worst_batches"] else None
    lines = [
        ("Tokens per row", f"median {tokens['median']:,}, 95% within {tokens['p95']:,}, longest {tokens['max']:,}"),
        ("Total tokens", numbers.count(tokens["total"])),
        ("Truncated rows", f"{values['truncated_rows']:,} of {rows:,}, losing {values['lost_tokens']:,} tokens"),
        ("Rows with no loss tokens", numbers.count(values["untrained_rows"])),
        ("Duplicate rows", f"{values['duplicate_rows']:,} exact, {values['near_duplicate_rows']:,} near"),
        *_held_out(values),
        ("Longest rows", ", ".join(f"{row:,} ({length:,} tokens)" for row, length in longest)),
        (
            "Padding",
            f"{numbers.percent(values['padding_waste'])} of each batch; with packing {numbers.percent(values['packing_waste'])}",
        ),
    ]
    if worst:
        rank = f", rank {worst['rank']}" if values["settings"]["num_processes"] > 1 else ""
        lines.append(("Longest batch", f"step {worst['step']:,}{rank}: {worst['tokens']:,} tokens"))
    if "leaked_rows" in values.get("validation", {}):
        lines.append(
            ("Also in the validation file", numbers.plural(values["validation"]["leaked_rows"], "row", "rows")),
        )
        lines.append(("Near duplicates in it", numbers.plural(values["validation"]["near_leaked_rows"], "row", "rows")))
    return lines
