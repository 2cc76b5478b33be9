"""Functions in a user's file as rewards: loads them and calls them in the way that their signature says."""

import functools
import inspect
import keyword
import math
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from training.errors import causes
from training.rewards.rewards import Reward
from training.rewards.sample import Sample

_BY_NAME = ("prompt", "answer", "expected", "row")
_FORMS = "f(prompt, answer, expected), f(prompt, answer, expected, row) or f(prompts, completions, **columns)"
_ROOT = Path(__file__).resolve().parents[2]  # first on the path of the reward process
_LONGEST = 300  # characters of a message


class RewardFailed(Exception):  # noqa: N818
    """A reward gave no score: `kind` is that of a `Trouble`; the message is for the user."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class OwnReward:
    """A function of a user's file. A `batch` function takes all samples at once, as trl's reward functions do."""

    def __init__(self, reward: Reward, file: Path, namespace: dict[str, Any]) -> None:
        """
        Raises:
            RewardFailed: the file has no such function, or its parameters are not those of a reward.
        """
        assert reward.own is not None
        self._path, self._file, name = str(file), *reward.own
        function = namespace.get(name)
        if not callable(function):
            callables = (key for key, value in namespace.items() if callable(value) and key[0] != "_")
            known = ", ".join(sorted(callables)) or "none"
            raise RewardFailed("file", f"{self._file} has no function {name}; its functions are: {known}")
        if inspect.iscoroutinefunction(function):
            message = f"{self._file}: {name} is async, but a reward has no network to wait for; write def {name}"
            raise RewardFailed("file", message)
        self._function, self._name = functools.partial(function, **reward.options), name
        try:
            self._signature = inspect.signature(self._function)
        except (TypeError, ValueError) as error:
            options = f" with the options {', '.join(reward.options)}" if reward.options else ""
            raise RewardFailed("file", f"{self._file}: {name} cannot be called{options}: {error}") from None
        self._parameters = self._signature.parameters
        needed = [key for key, part in self._parameters.items() if part.default is part.empty]
        self.batch = "completions" in self._parameters
        self._by_name = bool(needed) and all(key in _BY_NAME for key in needed)
        self._count = next((count for count in (4, 3) if self._takes(count)), 0)
        if not (self.batch or self._by_name or self._count):
            raise RewardFailed(
                "file", f"{self._file}: {name}{str(self._signature)[:100]} is not a reward; write {_FORMS}"
            )

    def score(self, sample: Sample, place: str) -> float | None:
        """The score of a sample; `place` names it in messages.

        Raises:
            RewardFailed: the function failed, or returned something else than a finite number or None.
        """
        values = (sample.prompt, sample.answer, sample.expected, dict(sample.row))
        try:
            if self._by_name:
                named = zip(_BY_NAME, values, strict=True)
                found = self._function(**{key: value for key, value in named if key in self._parameters})
            else:
                found = self._function(*values[: self._count])
        except BaseException as error:
            raise self._failed(error, place) from error
        return self._number(found, place)

    def score_all(self, samples: Sequence[Sample], places: Sequence[str]) -> Iterator[float | RewardFailed | None]:
        """The scores of all samples from one call, or why one has none.

        Raises:
            RewardFailed: the function failed, or did not return a list with a score for each.
        """
        try:
            found = self._function(**self._columns(samples))
            found = found.tolist() if hasattr(found, "tolist") else list(found)
        except BaseException as error:
            raise self._failed(error, "") from error
        if len(found) != len(samples):
            message = f"{self._file}: {self._name} returned {len(found)} scores for {len(samples)} answers"
            raise RewardFailed("not a number", message)
        for value, place in zip(found, places, strict=True):
            try:
                yield self._number(value, place)
            except RewardFailed as error:
                yield error

    def _columns(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """Prompts, completions and the columns of the rows; all of them only if the function takes any keyword."""
        chat = all(isinstance(sample.row.get("prompt"), list) for sample in samples)
        values: dict[str, Any] = {name: [sample.row.get(name) for sample in samples] for name in samples[0].row}
        values |= {
            "prompts": [sample.row["prompt"] if chat else sample.prompt for sample in samples],
            "completions": [
                [{"role": "assistant", "content": sample.answer}] if chat else sample.answer for sample in samples
            ],
            "expected": [sample.expected for sample in samples],
        }
        every = any(part.kind is part.VAR_KEYWORD for part in self._parameters.values())
        taken = {"trainer_state": None} | values if not every else values
        missing = [
            name
            for name, part in self._parameters.items()
            if part.default is part.empty
            and part.kind not in (part.VAR_KEYWORD, part.VAR_POSITIONAL)
            and name not in taken
        ]
        if missing:
            known = ", ".join(samples[0].row)
            raise RewardFailed(
                "file", f"{self._file}: {self._name} needs {missing[0]}; the columns of the rows are: {known}"
            )
        return values if every else {name: value for name, value in taken.items() if name in self._parameters}

    def _takes(self, count: int) -> bool:
        """True if the function can be called with this number of positional arguments."""
        try:
            self._signature.bind(*range(count))
        except TypeError:
            return False
        return True

    def _failed(self, error: BaseException, place: str) -> RewardFailed:
        if isinstance(error, RewardFailed):
            return error
        kinds = {MemoryError: "memory", PermissionError: "refused"}
        found = (name for cause in causes(error) for type_of, name in kinds.items() if isinstance(cause, type_of))
        kind = next(found, "exception")
        where = ", ".join(part for part in (place, self._file) if part) + line_of(error, self._path)
        return RewardFailed(kind, f"{where}: {described(error)}")

    def _number(self, value: Any, place: str) -> float | None:
        if hasattr(value, "item") and not isinstance(value, (int, float)):  # of numpy
            value = value.item()
        if value is None:
            return None
        if isinstance(value, bool | int | float) and math.isfinite(value):
            return float(value)
        text = f"{place}: {self._file}: {self._name} returned {str(value)[:80]!r} ({type(value).__name__})"
        raise RewardFailed("not a number", f"{text}, not a finite number or None")


def name_fault(file: str) -> str:
    """Why a file of code cannot have this name; empty if it can. One of two modules with the same name hides the other."""
    stem = file.removesuffix(".py")
    if not stem.isidentifier() or keyword.iskeyword(stem):
        return "is not the name of a Python module."
    here = {"", str(Path.cwd())}
    path = [str(_ROOT), *(folder for folder in sys.path if folder not in here)]
    if stem in sys.stdlib_module_names or PathFinder.find_spec(stem, path) is not None:
        return "is the name of a module that Python or an installed package has."
    return ""


def load(file: Path) -> dict[str, Any]:
    """What the names in a user's file stand for.

    Raises:
        RewardFailed: it cannot be run.
    """
    try:
        return runpy.run_path(str(file), run_name=file.stem)
    except BaseException as error:
        kind = "refused" if isinstance(error, PermissionError) else "file"
        raise RewardFailed(kind, f"{file.name}{line_of(error, str(file))}: {described(error)}") from error


def described(error: BaseException) -> str:
    """Type and message of an error, without its further lines."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return " ".join(text.split())[:_LONGEST]


def line_of(error: BaseException, path: str) -> str:
    """ ", line 12" of the user's file; of a syntax error the line that it names."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f", line {lines[-1]}" if lines else ""
