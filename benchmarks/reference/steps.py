"""Reads which rows a run of benchmarks/reference/command.py trained on in each step, and which samples it drew."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.reference.cells import Cell
from benchmarks.reference.plain_loop import Step
from benchmarks.reference.ranks import batches_file

FILLER = 2  # tokens of a row that fills the last batch of an epoch under sequence parallelism


class MismatchError(Exception):
    """A run that cannot be compared: it trained on other rows, or saved other weights."""


def read_steps(folder: Path, cell: Cell, tokens: Sequence[list[int]]) -> list[Step]:
    """Returns the rows of every step of the run.

    Raises:
        MismatchError: a row is not in the data, or trained again before all rows had trained.
    """
    places = {tuple(row): place for place, row in enumerate(tokens)}
    if len(places) < len(tokens):
        raise MismatchError("has equal rows, which cannot be told apart")
    paired = cell.config["task"] in ("dpo", "reward")
    shares = cell.config.get("sequence_parallel_size", 1)
    groups = [range(first, first + shares) for first in range(0, cell.ranks, shares)]
    parts = [_batches([batches_file(folder, rank) for rank in group], places, paired=paired) for group in groups]
    steps = [[list(micro) for micro in zip(*(part[step] for part in parts), strict=True)] for step in sorted(parts[0])]
    if cell.config["task"] in ("grpo", "distill"):
        return _sample_steps(steps, len(tokens), cell.config)
    (_check_stream if cell.config.get("streaming") else _empty_filled)(steps, len(tokens))
    return steps


def _check_stream(steps: list[Step], rows: int) -> None:
    """Checks a stream, whose epochs follow each other within a step. Raises MismatchError as `_empty_filled`."""
    seen: set[int] = set()
    for row in (row for step in steps for micro in step for batch in micro for row in batch):
        seen = set() if len(seen) == rows else seen
        if row in seen:
            raise MismatchError(f"trained on a row again when {len(seen)} of {rows} rows had trained")
        seen.add(row)


def _sample_steps(steps: list[Step], rows: int, config: dict[str, Any]) -> list[Step]:
    """Returns the numbers of the samples of each step in place of their rows. The samples of a row follow each other.

    Raises:
        MismatchError: a step trained on other rows than the one whose samples it has again; or as `_empty_filled`.
    """
    each, again = config.get("num_generations", 1), config.get("num_iterations", 1)
    if any(step != steps[number // again * again] for number, step in enumerate(steps)):
        raise MismatchError("trained on other rows where it has the samples of the step before")
    numbered = []
    for step in steps[::again]:
        taken: Counter[int] = Counter()
        numbered.append([[[_next_sample(row, each, taken) for row in rank] for rank in micro] for micro in step])
    _empty_filled(numbered, rows * each)
    return [step for step in numbered for _ in range(again)]


def _next_sample(row: int, each: int, taken: Counter[int]) -> int:
    taken[row] += 1
    return row * each + (taken[row] - 1) % each


def read_samples(folder: Path, cell: Cell, steps: list[Step]) -> list[dict[int, list[int]]]:
    """Returns the tokens of the samples of each step, by their number."""
    ranks = [_by_step(batches_file(folder, rank)) for rank in range(cell.ranks)]
    return [
        {
            sample: answer
            for micro, of_ranks in enumerate(step)
            for rank, samples in enumerate(of_ranks)
            for sample, answer in zip(
                samples, ranks[rank][number][micro]["answers"], strict=False
            )  # without empty batches
        }
        for number, step in enumerate(steps, start=1)
    ]


def _by_step(file: Path) -> dict[int, list[dict[str, Any]]]:
    records: dict[int, list[dict[str, Any]]] = {}
    for record in _last_attempts(file):
        records.setdefault(record["step"], []).append(record)
    return records


def _empty_filled(steps: list[Step], rows: int) -> None:
    """Empties the batches of ranks for which an epoch had no rows left; their filler rows must not count.

    Raises:
        MismatchError: a row trained again before all rows had trained.
    """
    seen: set[int] = set()
    for number, micro in ((number, micro) for step in steps for number, micro in enumerate(step)):
        if len(seen) == rows and number == 0:
            seen = set()  # an epoch begins with a step
        for rank, batch in enumerate(micro):
            if len(seen) == rows:
                micro[rank] = []
            elif len(seen | set(batch)) < len(seen) + len(batch):
                raise MismatchError(f"trained on a row again when {len(seen)} of {rows} rows had trained")
            seen |= set(batch)


def _batches(files: list[Path], places: dict[tuple[int, ...], int], *, paired: bool) -> dict[int, list[list[int]]]:
    """Returns the batches by step of the ranks that share sequences, each of which recorded its part of every row.

    In batches of pairs all chosen answers come before the rejected ones.
    """
    steps: dict[int, list[list[int]]] = {}
    for records in zip(*map(_last_attempts, files), strict=True):
        whole = [
            [token for part in parts for token in part] for parts in zip(*(r["rows"] for r in records), strict=True)
        ]
        rows = whole[: len(whole) // 2] if paired else whole
        if len(files) > 1:
            rows = [row for row in rows if len(row) > FILLER]
        if not all(tuple(row) in places for row in rows):
            step = records[0]["step"]
            raise MismatchError(f"trained at step {step} on a row that has other tokens than the reference's")
        steps.setdefault(records[0]["step"], []).append([places[tuple(row)] for row in rows])
    return steps


def _last_attempts(file: Path) -> list[dict[str, Any]]:
    """Returns the batches of each step as the last process recorded them that took it."""
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    last = {record["step"]: record["process"] for record in records}
    return [record for record in records if last[record["step"]] == record["process"]]
