"""A row of data and what the trainer makes of it, with the checks that every text in it must pass. No torch."""

from dataclasses import dataclass
from typing import Any

from training.failure import DataError

Row = dict[str, Any]
Message = dict[str, Any]
"""`role` and `content` (always text, empty beside `tool_calls`), and what else the chat template may want."""


@dataclass(frozen=True)
class Example:
    """A row in the form the trainer takes: chat `messages`, or `prompt` and `answer` strings (`prompt` empty for plain text).

    `tools` are what the conversation may call. `rejected` is the answer of a preference pair that was liked less, as text or
    as messages after the common beginning; the last `answer_turns` messages are then the chosen one. `label` is whether an
    unpaired answer is wanted.
    """

    messages: list[Message] | None = None
    prompt: str = ""
    answer: str = ""
    tools: list[Row] | None = None
    rejected: str | list[Message] | None = None
    answer_turns: int = 1
    label: bool | None = None


class EmptyRow(DataError):  # noqa: N818
    """A row that is well formed and has nothing in it to learn: it is left out of training, and counted."""


def text(row: Row, column: str) -> str:
    """The text in a column; a null is an empty one.

    Raises:
        DataError: the column is missing, or holds something else.
    """
    if column not in row:
        raise DataError("is missing.", "Give every row this column, or delete the row.", field=column)
    value = row[column]
    return "" if value is None else sound(value, column)


def filled(row: Row, column: str) -> str:
    """The text in a column that must hold some.

    Raises:
        EmptyRow: it holds none.
        DataError: as `text`.
    """
    value = text(row, column)
    if not value or value.isspace():
        raise EmptyRow("is empty: there is nothing to learn.", "Fill it in, or delete the row.", field=column)
    return value


def sound(value: Any, place: str) -> str:
    """The value, where it is text that a tokenizer and a database can take.

    Raises:
        DataError: it is no text, or holds a NUL or half of a character.
    """
    if not isinstance(value, str):
        raise DataError(f"is {kind_of(value)}, not text.", "Give text (in quotes).", field=place)
    if "\0" in value:
        raise DataError("holds a NUL character.", "Remove it: no tokenizer was trained on it.", field=place)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            half = f"U+{ord(value[error.start]):04X}"
            raise DataError(
                f"holds half of a character ({half}).", "Write the file again as UTF-8.", field=place
            ) from None
    return value


def kind_of(value: Any) -> str:
    """What a JSON value is, in words."""
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
