"""A row of a data set, the training example made from it, and the checks of its texts. No torch."""

from dataclasses import dataclass
from typing import Any

from training.errors import DataError

Row = dict[str, Any]
Message = dict[str, Any]
"""`role` and `content` (always text; empty with `tool_calls`), and any other keys for the chat template."""


@dataclass(frozen=True)
class Example:
    """A training example: chat `messages`, or `prompt` and `answer` strings (`prompt` is empty for plain text).

    `tools` are the tools of the conversation. `rejected` is the rejected answer of a preference pair, as text or as messages
    after the common prompt; the last `answer_turns` messages are then the chosen answer. `label` is True for a good unpaired
    answer, False for a bad one. `weight` is the loss weight of the row.
    """

    messages: list[Message] | None = None
    prompt: str = ""
    answer: str = ""
    tools: list[Row] | None = None
    rejected: str | list[Message] | None = None
    answer_turns: int = 1
    label: bool | None = None
    weight: float = 1.0


class EmptyRow(DataError):  # noqa: N818
    """A valid row without an answer or a prompt: training skips it, and it is counted."""


def text(row: Row, column: str) -> str:
    """The text in a column; null gives an empty text.

    Raises:
        DataError: the column is missing or is not text.
    """
    if column not in row:
        raise DataError("is missing.", "Add this column to every row, or delete the row.", field=column)
    value = row[column]
    return "" if value is None else valid_text(value, column)


def filled(row: Row, column: str) -> str:
    """The text in a column that must not be empty.

    Raises:
        EmptyRow: it is empty.
        DataError: as `text`.
    """
    value = text(row, column)
    if not value or value.isspace():
        raise EmptyRow("is empty: nothing to train on.", "Fill it in, or delete the row.", field=column)
    return value


def valid_text(value: Any, place: str) -> str:
    """The value, checked to be text that a tokenizer and a database accept.

    Raises:
        DataError: it is not text, or contains a NUL or an unpaired surrogate.
    """
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
