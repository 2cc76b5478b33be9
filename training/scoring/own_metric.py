"""`python -m training.scoring.own_metric FILE FUNCTION`: scores answers with a user's function, in a process with limits.

Standard input has one JSON object a row, with row, prompt, answer and expected. It prints {"scores": [...]}, or {"error": ...} that
names the row and the line.
"""

import contextlib
import json
import math
import runpy
import sys
import traceback
from collections.abc import Callable
from typing import Any


class MetricError(Exception):
    """The user's function cannot be used, or failed; the message is for the user."""


def load(path: str, function: str, name: str) -> Callable[..., Any]:
    """The function of a file.

    Raises:
        MetricError: the file cannot be run, or has no such function.
    """
    try:
        namespace = runpy.run_path(path, run_name="metric")
    except BaseException as error:
        raise MetricError(f"{name}{_line(error, path)}: {type(error).__name__}: {error}") from error
    found = namespace.get(function)
    if not callable(found):
        known = (
            ", ".join(sorted(key for key, value in namespace.items() if callable(value) and key[0] != "_")) or "none"
        )
        raise MetricError(f"{name} has no function {function}; its functions are: {known}")
    return found  # type: ignore[no-any-return]


def scored(function: Callable[..., Any], record: dict[str, Any], path: str, name: str) -> float:
    """The score of an answer.

    Raises:
        MetricError: the function failed, or returned no finite number.
    """
    place = f"row {record['row'] + 1:,}"
    try:
        value = function(record["prompt"], record["answer"], record["expected"])
    except BaseException as error:
        raise MetricError(f"{place}, {name}{_line(error, path)}: {type(error).__name__}: {error}") from error
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    raise MetricError(f"{place}: {name} returned {str(value)[:80]!r} ({type(value).__name__}), not a finite number")


def _line(error: BaseException, path: str) -> str:
    """ ", line 12" of the user's file; of a syntax error the line that it names."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f", line {lines[-1]}" if lines else ""


def main(path: str, function: str, name: str) -> None:
    """Scores the rows on standard input. What the user's code prints goes to standard error."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            metric = load(path, function, name)
            scores = [scored(metric, json.loads(line), path, name) for line in sys.stdin]
    except MetricError as error:
        print(json.dumps({"error": str(error)}))
        return
    print(json.dumps({"scores": scores}))


if __name__ == "__main__":
    main(*sys.argv[1:4])
