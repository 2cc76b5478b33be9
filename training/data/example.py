"""A row of a data set, the training example made from it, and the checks of its texts, classes and media. No torch."""

import contextlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from training.errors import DataError

Row = dict[str, Any]
Message = dict[str, Any]
"""`role` and `content` (always text; empty with `tool_calls`), and any other keys for the chat template."""
_MEDIA_COLUMNS = {
    name: kind for kind in ("image", "video", "audio") for name in (kind, f"{kind}s", f"{kind}_path", f"{kind}_url")
}
# A word in angle brackets counts only where multimodal data sets put it, since text may speak of HTML's <video>.
_PLACEHOLDER = re.compile(
    r"\A\s*<(image|video|audio)>|^[ \t]*<(image|video|audio)>[ \t]*$|<(image|video|audio)>\s*\Z"
    r"|<\|(image|video|audio)_?(?:pad|bos|1)?\|>|<\|(vision)_start\|>|<(image)_placeholder>|\[(IMG)\]"
    r"|<(?P<media>img|audio|video)>[^<>\n]+</(?P=media)>|<(?:Image|Audio|Video)Here>",
    re.MULTILINE,
)
_MEDIA_FIX = "Lathe trains on text: remove these rows, or train them with a program for multimodal models."
_LONGEST_CLASS = 200  # characters
_FEW_ROWS = 20  # in which many classes prove nothing
ONE_CLASS = "is the same class in every row, so there is nothing to learn."
ONE_CLASS_FIX = "Use rows of at least two classes."
_CLASS_FIX = "Give every row a short label (columns text and label), or choose the task sft."


@dataclass(frozen=True)
class Example:
    """A training example: chat `messages`, or `prompt` and `answer` strings (`prompt` is empty for plain text).

    `tools` are the tools of the conversation. `rejected` is the rejected answer of a preference pair, as text or as messages
    after the common prompt; the last `answer_turns` messages are then the chosen answer. `label` is True for a good unpaired
    answer, False for a bad one. `weight` is the loss weight of the row. `answered` is False for a prompt alone: its messages end
    with a question.
    """

    messages: list[Message] | None = None
    prompt: str = ""
    answer: str = ""
    tools: list[Row] | None = None
    rejected: str | list[Message] | None = None
    answer_turns: int = 1
    label: bool | None = None
    weight: float = 1.0
    answered: bool = True


def asked(example: Example) -> list[Message]:
    """The messages before the answer of a chat: before the last message of the assistant, or all of a prompt alone."""
    messages = example.messages or []
    answers = (place for place, turn in enumerate(messages) if turn["role"] == "assistant" and example.answered)
    return messages[: max(answers, default=len(messages))]


def prompt_text(example: Example) -> str:
    """The text before the last answer as rewards and judges see it, without a chat template: that of its only turn, or the turns
    with their roles, separated by empty lines."""
    if example.messages is None:
        return example.prompt
    turns = asked(example)
    if len(turns) == 1:
        return answer_text(turns[0])
    return "\n\n".join(f"{turn['role']}: {answer_text(turn)}" for turn in turns)


def answer_text(turn: Message) -> str:
    """The text of an answer, followed by its tool calls: each as JSON with name and arguments, in <tool_call> tags."""
    calls = [f"<tool_call>\n{_call_text(call)}\n</tool_call>" for call in turn.get("tool_calls") or ()]
    return "\n".join([str(turn["content"]), *calls] if turn["content"] else calls)


def _call_text(call: Any) -> str:
    function = call.get("function", call) if isinstance(call, dict) else {"name": str(call)}
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    return json.dumps({"name": function.get("name"), "arguments": arguments}, ensure_ascii=False)


class EmptyRow(DataError):  # noqa: N818
    """A valid row without an answer or a prompt: training skips it, and it is counted."""


def text(row: Row, column: str) -> str:
    """The text in a column; null gives an empty text. Raises DataError if the column is missing or is not text."""
    if column not in row:
        raise DataError("is missing.", "Add this column to every row, or delete the row.", field=column)
    value = row[column]
    return "" if value is None else valid_text(value, column)


def filled(row: Row, column: str) -> str:
    """The text in a column that must not be empty. Raises EmptyRow if it is empty, and DataError as `text`."""
    value = text(row, column)
    if not value or value.isspace():
        raise EmptyRow("is empty: nothing to train on.", "Fill it in, or delete the row.", field=column)
    return value


def valid_text(value: Any, place: str) -> str:
    """The value, checked to be text that a tokenizer and a database accept. Raises DataError if it is not text, or contains a NUL
    or an unpaired surrogate."""
    if not isinstance(value, str):
        raise DataError(f"is {kind_of(value)}, not text.", "Write text (in quotes).", field=place)
    if "\0" in value:
        raise DataError("contains a NUL character.", "Remove it.", field=place)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            surrogate = f"U+{ord(value[error.start]):04X}"
            raise DataError(
                f"contains half of a character ({surrogate}).", "Save the file as UTF-8 again.", field=place
            ) from None
    return value


def kind_of(value: Any) -> str:
    """The type of a JSON value as text."""
    names = {
        type(None): "missing (null)",
        bool: "true or false",
        list: "a list",
        dict: "an object",
        str: "text",
        bytes: "bytes",
    }
    return names.get(
        type(value), f"a number ({value!r})" if isinstance(value, (int, float)) else f"a {type(value).__name__}"
    )


def refuse_media_columns(row: Row) -> None:
    """Checks that no column of the row holds images, audio or video. Raises DataError if one does."""
    for name in _MEDIA_COLUMNS.keys() & row.keys():
        if row[name]:
            raise DataError(f"holds {_MEDIA_COLUMNS[name]} data.", _MEDIA_FIX, field=name)


def refuse_placeholders(example: Example) -> None:
    """Checks that no prompt of the example contains a placeholder for an image, audio or video. Raises DataError if one does."""
    asked = (message["content"] for message in example.messages or [] if message["role"] == "user")
    for text in (example.prompt, *asked):
        if ("<" in text or "[" in text) and (found := _PLACEHOLDER.search(text)):
            raise DataError(f"contains a placeholder for an image, audio or video ({found[0].strip()}).", _MEDIA_FIX)


def check_classes(names: Sequence[str], *, all_rows: bool = False) -> None:
    """Checks the classes of rows, empty for a row without one: all rows, or the first ones. Raises DataError if no row has a
    class, all have the same, or the answers are free text."""
    classes = [name for name in names if name]
    if not classes:
        raise DataError("has no row with a class.", _CLASS_FIX, field="label")
    longest = max(map(len, classes))
    if longest > _LONGEST_CLASS:
        raise DataError(
            f"has answers of up to {longest:,} characters in the place of classes.", _CLASS_FIX, field="label"
        )
    different = len(set(classes))
    if all_rows and different < 2:
        raise DataError(ONE_CLASS, ONE_CLASS_FIX, field="label")
    if len(classes) >= _FEW_ROWS and different > len(classes) / 2:
        message = f"has {different:,} different classes in {len(classes):,} rows, which are free text and not classes."
        raise DataError(message, _CLASS_FIX, field="label")
