"""Explains an error in the user's own code: where it is, and which value it could not use."""

import re

from worker.diagnosis.cause import Detail, Known
from worker.diagnosis.parsing.tracebacks import Frame, is_passing
from worker.diagnosis.timeline import Log

_NO_ATTRIBUTE = re.compile(r"'NoneType' object has no attribute '(\w+)'")
_MISSING = re.compile(r"NoneType")
_SHAPES = re.compile(r"mat1 and mat2 shapes cannot be multiplied \((\d+)x(\d+) and (\d+)x(\d+)\)")
_COLUMN = re.compile(r"""\w+\[["'](\w+)["']\]""")
_OF_MAP = re.compile(r"datasets/(?:arrow_dataset|iterable_dataset)\.py$")
_TORCH = re.compile(r"/torch/")
_TESTED = re.compile(r"^(\S+\.py):(\d+): \w+$")
_CHECKOUT = re.compile(
    r"(?:^|/)(?P<name>llamafactory|llmtuner|swift|verl|axolotl|nemo|megatron|torchtune|unsloth|unsloth_zoo|trl|peft|transformers|deepspeed"
    r"|accelerate|vllm|sglang|lightning|fairseq|openrlhf|xtuner|fastchat|llava)/(?:\w+/)*\w+\.py$"
)
"""A file of a training library that is installed from its sources."""
_OF_DATA_SET = "__getitem__"
_LINES_AFTER = 4


def _located(log: Log, index: int) -> Frame | None:
    """The last frame that ran the user's code, below which only torch's own are; None if another package raised the error."""
    trace = log.traceback_at(index)
    frames = list(trace.frames) if trace else []
    if not frames:
        return _of_test(log, index)
    while frames and (
        frames[-1].of_python
        or (is_passing(frames[-1]) and frames[-1].function != _OF_DATA_SET)
        or _TORCH.search(frames[-1].file.replace("\\", "/"))
    ):
        frames.pop()
    return frames[-1] if frames and not frames[-1].installed else None


def _of_test(log: Log, index: int) -> Frame | None:
    """The frame that pytest prints below the error."""
    for line in log.lines[index + 1 : index + _LINES_AFTER]:
        if found := _TESTED.match(line.text):
            return Frame(found[1], "", "", int(found[2]))
    return None


def in_own_code(log: Log, index: int) -> bool:
    """True if the error ended the run, and the log shows the line of the user's code in which it is.

    An exception that the code raises by itself is none: its message says what is wrong.
    """
    frame, ends = _located(log, index), log.timeline.endings
    if frame is None or frame.code.startswith("raise "):
        return False
    message = log.lines[index].text.strip()  # a chain may repeat the exception of another process
    return not ends or any(
        one.contains(index) and log.lines[one.links[-1].last].text.strip() == message for one in ends
    )


def analyze_own_code(log: Log, index: int, known: Known) -> Detail:
    """Names the line of code, and what the value was that it could not use."""
    frame, message = _located(log, index), log.lines[index].text.strip()
    if frame is None:
        return Detail(explanation=message)
    place = f"{frame.file}, line {frame.line}" if frame.line else frame.file
    within = f" in {frame.function}" if frame.function and frame.function != "<module>" else ""
    code = f": `{frame.code}`" if frame.code else ""
    return Detail(
        explanation=f"{message} ({place}{within}{code})",
        fix=(*_reasons(log, index, frame, message), f"Correct {place}{within}{code}.", *_of_checkout(frame)),
    )


def library_of(frame: Frame) -> str | None:
    """The training library whose sources the file is of; None for any other file."""
    found = _CHECKOUT.search(frame.file.replace("\\", "/"))
    return found["name"] if found else None


def _of_checkout(frame: Frame) -> tuple[str, ...]:
    """What to do if the file is of a library that is installed from its sources, and not the user's."""
    name = library_of(frame)
    if name is None:
        return ()
    return (
        f"The file belongs to {name}: if you did not change it, its version has a fault here, or does not fit your data "
        "or the other packages: update it (git pull, then pip install -e .), and search its issues for the message.",
    )


def _reasons(log: Log, index: int, frame: Frame, message: str) -> tuple[str, ...]:
    """What the message means for this line of code."""
    if shapes := _SHAPES.search(message):
        rows, given, taken, _ = shapes.groups()
        return (
            f"The layer takes {taken} features and is given {given} (a matrix of {rows} x {given}): make it with in_features "
            f"{given}, such as model.config.hidden_size, or give it the output that it was made for.",
        )
    if _MISSING.search(message) is None:
        return ()
    columns = ", ".join(dict.fromkeys(_COLUMN.findall(frame.code)))
    named = f" ({columns})" if columns else ""
    trace = log.traceback_at(index)
    if trace and any(_OF_MAP.search(one.file.replace("\\", "/")) for one in trace.frames):
        return (
            f"A row has no value (null) in a column that this function reads{named}: leave such rows out before "
            "(filter with `is not None`), or let the function put an empty text in their place.",
        )
    found = _NO_ATTRIBUTE.search(message)
    value = _before(frame.code, found[1]) if found else ""
    named = f"`{value}`" if value else f"A value in this line{named}"
    return (
        f"{named} is None here: look at where it is set, or at what the function that it comes from returns in this case.",
    )


def _before(code: str, attribute: str) -> str:
    """The expression in a line of code whose attribute is read."""
    end = code.find(f".{attribute}")
    start, depth = end, 0
    while start > 0:
        character = code[start - 1]
        depth += (character in ")]}") - (character in "([{")
        if depth < 0 or (depth == 0 and not (character.isalnum() or character in "_.()[]{}'\"")):
            break
        start -= 1
    return code[start:end] if end > 0 else ""
