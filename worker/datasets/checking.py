"""Reads uploaded files and stored data sets in a process with limits: a file may be malicious."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from training.data.files.readers import REFUSED
from training.data.inspection import Inspection
from training.data.survey import Issue
from training.errors import DataError
from training.limited import Limits
from training.units import signal_name
from worker.machine import programs
from worker.machine.programs import ProgramError, Result

READER, JOINER = programs.INSPECTION, programs.JOIN_FILES
LARGEST_OUTPUT = 4 * 2**20  # bytes


def check_file(path: Path, name: str, columns: str | None = None, file_format: str | None = None) -> Inspection:
    """Inspects a file in a process with limits; `columns` is a mapping.

    The format is detected from content and name unless `file_format` gives it. A reader that crashes or exceeds a limit is
    reported as a problem of the file.
    """
    try:
        limits = limits_for(path)
    except DataError as error:
        return _failed(name, error)
    options = {"--name": name, "--columns": columns, "--file-format": file_format}
    arguments = [str(path.absolute()), *(f"{option}={value}" for option, value in options.items() if value)]
    result = programs.run_limited(READER, arguments, limits)
    if result.code or not result.output or len(result.output) > LARGEST_OUTPUT:
        return _failed(name, crash_error(limits, result))
    return Inspection.from_json(json.loads(result.output))


@contextmanager
def joined(paths: Sequence[Path], names: Sequence[str]) -> Iterator[IO[bytes]]:
    """The rows of several checked files as a stream of JSONL, written by a process with limits.

    Raises:
        DataError: at the end, if that process failed.
    """
    limits = limits_for(*paths)
    pairs = [part for path, name in zip(paths, names, strict=True) for part in (str(path.absolute()), name)]
    with programs.running_limited(JOINER, pairs, limits) as process:
        assert process.stdout and process.stderr
        yield process.stdout
        errors = process.stderr.read()
    if process.returncode == REFUSED:
        issue = Issue(**json.loads(errors))
        raise DataError(issue.message, issue.fix, file=issue.file, line=issue.line, field=issue.field)
    if process.returncode:
        error = crash_error(limits, Result(process.returncode, errors=errors))
        raise DataError(error.message, error.fix, file=" + ".join(names))


def length_of(path: Path) -> int:
    """The size of a file in bytes. Raises DataError if it is not there, or may not be read."""
    try:
        return path.stat().st_size
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}.", "Check the path and its permissions.") from None


def limits_for(*paths: Path) -> Limits:
    """The limits for a program that reads these files.

    Raises:
        DataError: one of them is not there, or may not be read.
    """
    return READER.limits(*paths, length=sum(map(length_of, paths)))


def _failed(name: str, error: DataError) -> Inspection:
    return Inspection(problems=[Issue.of(error, name)])


def crash_error(limits: Limits, result: Result) -> DataError:
    """The error for a program that a limit or a crash ended."""
    if len(result.output) > LARGEST_OUTPUT:
        return DataError("has far too many columns.", "Give each row a few texts, or a list of messages.")
    if result.too_slow:
        fix = "Save it as JSONL with one flat object per row."
        return DataError(f"takes more than {limits.seconds} s to read.", fix)
    if result.out_of_memory:
        return DataError("needs too much memory to read.", "Save it as JSONL, which is read row by row.")
    if result.code < 0:
        message = f"crashed its reader ({signal_name(-result.code)}): it is damaged or nested too deeply."
        return DataError(message, "Save it again with one flat object per row.")
    return DataError(f"cannot be checked ({result.last_line}).", "Save it again as JSONL in UTF-8.")


def first_rows(path: Path, count: int, columns: str | None = None) -> list[dict[str, Any]]:
    """The first `count` rows as `training.data.inspection` prints them; if it fails, one row with the problem."""
    mapping = ["--columns", columns] if columns else []
    try:
        arguments = [str(path.absolute()), "--first", str(count), *mapping]
        rows: list[dict[str, Any]] = programs.run_for_json(programs.INSPECTION, arguments, limits_for(path))
    except (DataError, ProgramError):
        fix = "Check the file: lathe dataset check FILE"
        return [{"number": 1, "problem": "The first rows could not be read.", "fix": fix}]
    return rows
