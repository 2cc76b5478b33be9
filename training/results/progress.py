"""The progress of a program that makes a form of a result, for the process that has started it."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import ParamSpec

from training.errors import Problem, UserError

Arguments = ParamSpec("Arguments")
Tell = Callable[[str, int, int], None]
"""Takes what is being done, and how much of how much is; 0 of 0 if that is not known."""

_SECONDS = 0.5


def silent(_phase: str, _done: int, _total: int) -> None:
    """Tells nobody."""


def printed(phase: str, done: int, total: int) -> None:
    """Prints a JSON object, a line."""
    print(json.dumps({"phase": phase, "done": done, "total": total}), flush=True)


def exit_status(main: Callable[Arguments, None]) -> Callable[Arguments, int]:
    """A main function that prints an error that a user can fix as a JSON object `{"problem": ...}`, apart from what libraries
    print, and returns the exit status. Other errors of files and values have only a message."""

    @wraps(main)
    def reporting(*arguments: Arguments.args, **named: Arguments.kwargs) -> int:
        try:
            main(*arguments, **named)
        except (UserError, OSError, ValueError) as error:
            problem = error.problem if isinstance(error, UserError) else Problem("", None, str(error))
            print(json.dumps({"problem": asdict(problem)}, default=str), flush=True)
            return 1
        return 0

    return reporting


@contextmanager
def growing(tell: Tell, phase: str, path: Path, total: int) -> Iterator[None]:
    """Tells how many of `total` bytes are in a file or folder while the `with` block writes it."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(_SECONDS):
            tell(phase, min(_bytes(path), total), total)

    tell(phase, 0, total)
    thread = threading.Thread(target=look, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _bytes(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else sum(file.stat().st_size for file in path.iterdir())
    except OSError:  # not there yet, or replaced
        return 0
