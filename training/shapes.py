"""The shapes a row of data may have, and each turned into the form the trainer takes. No torch."""

from dataclasses import dataclass
from typing import Any

from training.failure import DataError

Row = dict[str, Any]
Message = dict[str, str]

ROLES = ("system", "user", "assistant", "tool")
SHAPES_FIX = (
    "Name the columns messages (a list of {role, content}), prompt and completion, "
    "instruction (and input) and output, or text."
)


@dataclass(frozen=True)
class Example:
    """A row in the form the trainer takes: chat `messages`, or `prompt` and `answer` strings (`prompt` empty for plain text)."""

    messages: list[Message] | None = None
    prompt: str = ""
    answer: str = ""


def row_shape(row: Row) -> str:
    """messages, prompt/completion, instruction/output or text, by the columns of a row.

    Raises:
        DataError: the columns are none of these.
    """
    if "messages" in row:
        return "messages"
    if "conversations" in row:
        return "conversations"
    if {"prompt", "completion"} <= row.keys():
        return "prompt/completion"
    if {"instruction", "output"} <= row.keys():
        return "instruction/output"
    if "text" in row:
        return "text"
    raise DataError(
        f"has the columns {', '.join(map(repr, row)) or 'none'}, which say nothing of prompt and answer.",
        SHAPES_FIX,
        line=1,
    )


def located(row: Row, shape: str, number: int) -> Example:
    try:
        return to_example(row, shape)
    except DataError as error:
        raise DataError(error.message, error.fix, line=number, field=error.field) from None


def to_example(row: Row, shape: str) -> Example:
    """One row in the form the trainer takes.

    Raises:
        DataError: a needed value is missing, empty or of the wrong type.
    """
    match shape:
        case "messages" | "conversations":
            return Example(messages=_messages(row, shape))
        case "prompt/completion" if isinstance(row.get("prompt"), list):
            return Example(messages=_messages({"messages": [*row["prompt"], *_as_list(row, "completion")]}, "messages"))
        case "prompt/completion":
            return Example(prompt=_text(row, "prompt"), answer=_filled(row, "completion"))
        case "instruction/output":
            more = row.get("input") or ""
            prompt = _filled(row, "instruction") + (f"\n\n{_text(row, 'input')}" if more else "")
            system = [{"role": "system", "content": _text(row, "system")}] if row.get("system") else []
            return Example(
                messages=[
                    *system,
                    {"role": "user", "content": prompt},
                    {"role": "assistant", "content": _filled(row, "output")},
                ]
            )
        case _:
            return Example(answer=_filled(row, "text"))


def _messages(row: Row, column: str) -> list[Message]:
    listed = row.get(column)
    if not isinstance(listed, list) or not listed:
        raise DataError(
            f"{column} is {kind_of(listed)}, not a list of messages.", "Each message is {role, content}.", field=column
        )
    messages = [_message(entry, f"{column}[{index}]") for index, entry in enumerate(listed)]
    if not any(message["role"] == "assistant" and message["content"].strip() for message in messages):
        raise DataError(
            "no assistant message with text in it: there is nothing to learn.",
            "Add the assistant's answer, or delete the row.",
            field=column,
        )
    return messages


_SHAREGPT_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


def _message(entry: Any, place: str) -> Message:
    if not isinstance(entry, dict):
        raise DataError(f"is {kind_of(entry)}, not a message.", "Each message is {role, content}.", field=place)
    role, content = (
        entry.get("role", _SHAREGPT_ROLES.get(str(entry.get("from")))),
        entry.get("content", entry.get("value")),
    )
    if role not in ROLES:
        raise DataError(f"has the role {role!r}.", f"Use one of {', '.join(ROLES)}.", field=f"{place}.role")
    if not isinstance(content, str):
        raise DataError(f"is {kind_of(content)}, not text.", "Give the message's text.", field=f"{place}.content")
    return {"role": role, "content": content}


def _as_list(row: Row, column: str) -> list[Any]:
    value = row.get(column)
    return value if isinstance(value, list) else [{"role": "assistant", "content": _filled(row, column)}]


def _text(row: Row, column: str) -> str:
    value = row.get(column)
    if column not in row:
        raise DataError("is missing.", "Give every row this column, or delete the row.", field=column)
    if not isinstance(value, str):
        raise DataError(f"is {kind_of(value)}, not text.", "Give text (in quotes).", field=column)
    return value


def _filled(row: Row, column: str) -> str:
    value = _text(row, column)
    if not value.strip():
        raise DataError("is empty: there is nothing to learn.", "Fill it in, or delete the row.", field=column)
    return value


def kind_of(value: Any) -> str:
    """What a JSON value is, in words."""
    names = {type(None): "missing (null)", bool: "true or false", list: "a list", dict: "an object", str: "text"}
    return names.get(
        type(value), f"a number ({value!r})" if isinstance(value, (int, float)) else f"a {type(value).__name__}"
    )
