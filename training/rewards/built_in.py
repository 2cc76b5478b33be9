"""Built-in rewards: functions of a sample, with options as keyword-only parameters. They return a score or None: does not apply."""

import contextlib
import functools
import importlib
import io
import math
import re
import signal
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, Literal

from training.rewards import graders
from training.rewards.json_text import ABSENT, equal, is_json, unfenced, value_of
from training.rewards.numbers_in_text import close, last_number, number_of
from training.rewards.sample import Sample

JUDGE, MODEL = "judge", "model"
"""Rewards that are not here but in judge.py and reward_model.py."""
COMPARING = frozenset({"exact_match", "contains", "number_equal", "json_fields", "boxed", "tool_call"})
"""Rewards that compare with the expected answer."""
PACKAGES = {"regex": ("re2", "google-re2"), "language": ("py3langid", "py3langid>=0.4")}
"""Module and package that a reward cannot do without."""
MODULES = {kind: module for kind, (module, _) in PACKAGES.items()} | {"boxed": "math_verify"}
"""The module that a reward computes with, where it is installed."""

# As JSON text a backslash is written twice.
_BRACES = re.compile(r"(?P<box>\\{1,2}(?:boxed|fbox)\s*\{)|\\.|(?P<open>\{)|(?P<close>\})", re.DOTALL)
_PLAIN_WORDS = re.compile(r"\w+(?: \w+)*")
_SPACE_BESIDE_SIGN = re.compile(r"(?<!\w)\s+|\s+(?!\w)")
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
_TOOL_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_MATH_SECONDS = 2.0  # of processor time of math-verify for an answer: on a busy machine an answer has the same score
_MATH_WALL_SECONDS = 60


def exact_match(sample: Sample) -> float:
    """1 if the answer is exactly the expected text, apart from white space at both ends."""
    return float(sample.answer.strip() == sample.expected.strip())


def contains(sample: Sample, *, text: str = "", ignore_case: bool = False) -> float | None:
    """1 if the answer contains `text`, or else the expected text."""
    wanted, answer = (text or sample.expected).strip(), sample.answer
    if not wanted:
        return None
    return float(wanted.casefold() in answer.casefold() if ignore_case else wanted in answer)


def number_equal(sample: Sample, *, tolerance: float = 1e-9) -> float | None:
    """1 if the last number of the answer is the last number of the expected text, up to `tolerance`."""
    expected, found = last_number(sample.expected), last_number(sample.answer)
    if not isinstance(expected, Fraction):
        return None
    return float(found is not None and close(found, expected, tolerance))


def json_valid(sample: Sample) -> float:
    """1 if the answer is JSON."""
    return float(is_json(sample.answer))


def json_fields(
    sample: Sample, *, fields: list[str] | None = None, score: Literal["all", "share"] = "all"
) -> float | None:
    """1 if the answer is a JSON object with the expected object's values of `fields` (default: all of them); or their share."""
    expected, found = value_of(sample.expected), value_of(sample.answer)
    if not isinstance(expected, dict):
        return None
    names = list(expected) if fields is None else [name for name in fields if name in expected]
    if not names:
        return None
    right = [isinstance(found, dict) and equal(found.get(name, ABSENT), expected[name]) for name in names]
    return float(all(right)) if score == "all" else sum(right) / len(right)


def regex(sample: Sample, *, pattern: str, match: Literal["anywhere", "whole"] = "anywhere") -> float:
    """1 if the pattern matches the answer. RE2 matches in time that is linear in the answer's length, whatever the pattern."""
    compiled = _compiled(pattern)
    answer = sample.answer.encode(errors="replace").decode()  # RE2 reads UTF-8, which has no halves of characters
    return float((compiled.fullmatch if match == "whole" else compiled.search)(answer) is not None)


def length(
    sample: Sample,
    *,
    least: int = 0,
    most: int | None = None,
    unit: Literal["characters", "words"] = "characters",
    falloff: int = 0,
) -> float:
    """1 if the answer is `least` to `most` characters or words long; outside it falls to 0, linearly within `falloff`.

    In scripts without spaces, such as Chinese, each character counts as a word.
    """
    size = len(sample.answer) if unit == "characters" else len(_UNSPACED.sub(" x ", sample.answer).split())
    beyond = max(least - size, size - (math.inf if most is None else most), 0)
    return max(0.0, 1 - beyond / falloff) if falloff else float(not beyond)


def boxed(sample: Sample) -> float | None:
    r"""1 if the last \boxed{} of the answer equals the expected text, as text or number; with math-verify, as mathematics."""
    box = _in_box(sample.expected)
    expected = _plain(sample.expected.rpartition("####")[2] if box is None else box)
    if not expected:
        return None
    found = _plain(_in_box(sample.answer) or "")
    return float(found == expected or _same_number(found, expected) or _same_mathematics(found, expected))


def tool_call(sample: Sample) -> float | None:
    """1 if the answer has the same tool calls as the expected text: names and arguments, in any order."""
    expected = _calls(sample.expected)
    if not expected:
        return None
    found = _calls(sample.answer)
    for call in expected:
        match = next((index for index, other in enumerate(found) if equal(other, call)), None)
        if match is None:
            return 0.0
        found.pop(match)
    return float(not found)


def language(sample: Sample, *, code: str) -> float | None:
    """The probability that the answer is in the language `code`, such as de, among 97 languages."""
    if not any(character.isalpha() for character in sample.answer):
        return None
    return float(dict(_identifier().rank(sample.answer)).get(code, 0.0))


REWARDS: dict[str, Callable[..., float | None]] = {
    function.__name__: function
    for function in (
        exact_match,
        contains,
        number_equal,
        json_valid,
        json_fields,
        regex,
        length,
        boxed,
        tool_call,
        language,
        graders.string_check,
        graders.text_similarity,
    )
}

_ALONE = ", ".join(name for name in REWARDS if name not in COMPARING)
WITHOUT_EXPECTED = f"{_ALONE}, a judge without {{expected}} in its prompt, a reward model or own functions"
"""Those that do not compare, in words."""


def problem(kind: str, options: dict[str, Any]) -> str | None:
    """What is wrong with the values of options that have the right type."""
    if kind == "regex":
        try:
            _compiled(options["pattern"])
        except ValueError as error:
            return f"{error}: the pattern is not one of RE2, which has no look-around and no backreferences."
    if kind in ("string_check", "text_similarity"):
        return graders.problem(options)
    if kind == "language" and options["code"] not in _identifier().labels:
        return f"is not a language; languages are {', '.join(sorted(_identifier().labels))}."
    if kind == "number_equal" and options.get("tolerance", 0) < 0:
        return "is negative: no number is equal."
    if kind == "length" and options.get("most") is not None and options["most"] < options.get("least", 0):
        return "is more than most: no answer has this length."
    return None


def import_packages(kinds: AbstractSet[str]) -> None:
    """Imports the packages that rewards of these kinds use, as far as they are installed."""
    for kind in kinds & MODULES.keys():
        with contextlib.suppress(ImportError):
            importlib.import_module(MODULES[kind])


@functools.cache
def _compiled(pattern: str) -> Any:
    """Raises ValueError: the pattern is invalid."""
    import re2

    quiet = re2.Options()
    quiet.log_errors = False
    try:
        return re2.compile(pattern, quiet)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        raise ValueError(reason.decode() if isinstance(reason, bytes) else str(reason)) from None


@functools.cache
def _identifier() -> Any:
    from py3langid import modelio
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    # It unpacks its model into a file, which the reward process may not write.
    modelio.tempfile = SimpleNamespace(TemporaryFile=lambda **_: io.BytesIO())
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def _in_box(text: str) -> str | None:
    """What the last box of a text has between its braces; None without a complete one."""
    opened: list[int | None] = []  # where the contents of each open brace begin, if it is that of a box
    last: tuple[int, str] | None = None
    for brace in _BRACES.finditer(text):
        if brace["close"]:
            start = opened.pop() if opened else None
            if start is not None and (last is None or start > last[0]):
                last = start, text[start : brace.start()].strip()
        elif brace["box"] or brace["open"]:
            opened.append(brace.end() if brace["box"] else None)
    return last and last[1]


def _plain(text: str) -> str:
    """Mathematics without the spaces that have no meaning: those beside a sign."""
    return _SPACE_BESIDE_SIGN.sub("", text.strip().strip("$").strip())


def _same_number(one: str, other: str) -> bool:
    numbers = number_of(one), number_of(other)
    return numbers[0] is not None and numbers[1] is not None and close(numbers[0], numbers[1])


def _same_mathematics(found: str, expected: str) -> bool:
    if not found or (_PLAIN_WORDS.fullmatch(found) and _PLAIN_WORDS.fullmatch(expected)):
        return False  # words are not products of their letters
    try:
        from math_verify import parse, verify
    except ImportError:
        return False
    with contextlib.suppress(_OutOfTime), _cpu_seconds(_MATH_SECONDS):
        one, other = (parse(f"\\boxed{{{text}}}", parsing_timeout=_MATH_WALL_SECONDS) for text in (found, expected))
        return bool(verify(other, one, timeout_seconds=_MATH_WALL_SECONDS))
    return False


class _OutOfTime(BaseException):  # math-verify catches each Exception
    pass


@contextlib.contextmanager
def _cpu_seconds(seconds: float) -> Iterator[None]:
    """Raises _OutOfTime within the block after so many seconds of processor time."""

    def end(_number: int, _frame: Any) -> None:
        raise _OutOfTime

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _calls(text: str) -> list[dict[str, Any]]:
    """The tool calls in a text: JSON, alone or within <tool_call> tags. Empty if one of them cannot be read."""
    parts = _TOOL_CALL.findall(text) or [text]
    calls = [_call(value) for part in parts for value in _listed(value_of(unfenced(part)))]
    return [call for call in calls if call is not None] if all(calls) else []


def _listed(value: Any) -> Iterator[Any]:
    if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
        value = value["tool_calls"]
    yield from value if isinstance(value, list) else [value]


def _call(value: Any) -> dict[str, Any] | None:
    """Name and arguments of a call in any of the usual forms; None if the value is none."""
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str) and arguments.strip():
        read = value_of(arguments)
        arguments = arguments if read is ABSENT else read  # free text, as a shell's command, is compared as text
    return {"name": value["name"], "arguments": arguments or {}}
