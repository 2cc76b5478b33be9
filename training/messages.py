"""Conversations in the two forms that are common, role/content and from/value, as messages for a chat template."""

import json
from typing import Any

from training.example import EmptyRow, Message, Row, kind_of, sound
from training.failure import DataError

ROLES = ("system", "user", "assistant", "tool")
_OTHER_NAMES = {
    "developer": "system",
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "function": "tool",
    "observation": "tool",
    "function_response": "tool",
    "function_call": "assistant",
}
_READ = {"role", "content", "from", "value"}
_MESSAGES_FIX = "Each message is {role, content}."


def conversation(row: Row, column: str) -> list[Message]:
    """The messages in a column, with something in them to learn.

    Raises:
        EmptyRow: none is an assistant's with text or a tool call in it.
        DataError: as `turns`.
    """
    messages = turns(row, column)
    if not any(answers(message) for message in messages):
        message = "no assistant message with text in it: there is nothing to learn."
        raise EmptyRow(message, "Add the assistant's answer, or delete the row.", field=column)
    return messages


def answers(message: Message) -> bool:
    """Whether a message is an assistant's and says or calls something."""
    return message["role"] == "assistant" and bool(message["content"].strip() or message.get("tool_calls"))


def turns(row: Row, column: str) -> list[Message]:
    """The messages in a column: a list, the same written as JSON text, or a single message; none for null.

    Raises:
        DataError: the value, or one of the messages, is something else.
    """
    if column not in row:
        raise DataError("is missing.", "Give every row this column, or delete the row.", field=column)
    value = from_json(row[column])
    listed = [value] if isinstance(value, dict) else [] if value is None else value
    if not isinstance(listed, list):
        raise DataError(f"is {kind_of(value)}, not a list of messages.", _MESSAGES_FIX, field=column)
    return [_message(entry, column, index) for index, entry in enumerate(listed)]


def tools(row: Row) -> list[Row] | None:
    """What a row's `tools` column says may be called: a list of objects, or the same written as JSON text.

    Raises:
        DataError: it is something else.
    """
    value = from_json(row.get("tools"))
    if not value:
        return None
    if isinstance(value, list) and all(isinstance(tool, dict) for tool in value):
        return value
    fix = "Give a list of objects, or that list as JSON text."
    raise DataError(f"is {kind_of(value)}, not a list of tools.", fix, field="tools")


def from_json(value: Any) -> Any:
    """A list or object that was written as text, as CSV and some Parquet files hold it; any other value as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _message(entry: Any, column: str, index: int) -> Message:
    if not isinstance(entry, dict):
        place = f"{column}[{index}]"
        raise DataError(f"is {kind_of(entry)}, not a message.", _MESSAGES_FIX, field=place)
    given = entry.get("role", entry.get("from"))
    role = given if given in ROLES else _OTHER_NAMES.get(given) if isinstance(given, str) else None
    if role is None:
        place = f"{column}[{index}].role"
        raise DataError(f"has the role {given!r}.", f"Use one of {', '.join(ROLES)}.", field=place)
    content = entry.get("content", entry.get("value"))
    message: Message = {"role": role}
    if given == "function_call":
        return message | _written_call(content, f"{column}[{index}].value")
    if len(entry) > 2:
        message |= {key: value for key, value in entry.items() if value is not None and key not in _READ}
        if "tool_calls" in message:
            message["tool_calls"] = _tool_calls(message["tool_calls"], f"{column}[{index}].tool_calls")
    message["content"] = _content(content, message, f"{column}[{index}].content")
    return message


def _content(value: Any, message: Message, place: str) -> str:
    """A message's text. It may be null beside tool calls, or in parts, as some programs write it."""
    if value is None and message.get("tool_calls"):
        return ""
    if isinstance(value, list):
        value = "".join(_part(part, f"{place}[{index}]") for index, part in enumerate(value))
    return sound(value, place)


def _part(part: Any, place: str) -> str:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, dict) else kind_of(part)
    raise DataError(f"is {kind!r}, not text.", "Only text can be trained on; delete the row.", field=place)


def _tool_calls(value: Any, place: str) -> list[Row]:
    calls = from_json(value)
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise DataError(f"is {kind_of(calls)}, not a list of calls.", "Give a list of objects.", field=place)
    return [_call(call) for call in calls]


def _call(call: Row) -> Row:
    """A call with its arguments as an object: templates write them as JSON, and text would be quoted twice."""
    function = call.get("function")
    if isinstance(function, dict):
        return {key: value for key, value in call.items() if value is not None} | {"function": _call(function)}
    return call | {"arguments": from_json(call["arguments"])} if "arguments" in call else call


def _written_call(value: Any, place: str) -> Message:
    """A turn from `function_call`, whose value is the call (or a list of them) as JSON text."""
    call = from_json(value)
    calls = call if isinstance(call, list) else [call]
    if not all(isinstance(one, dict) and "name" in one for one in calls):
        raise DataError("is not a call.", 'Give {"name": ..., "arguments": {...}} as JSON text.', field=place)
    return {"content": "", "tool_calls": [{"type": "function", "function": _call(one)} for one in calls]}
