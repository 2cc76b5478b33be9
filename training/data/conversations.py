"""Reads conversations as messages for a chat template: lists of role/content or from/value, and trees as OpenAssistant's."""

import json
from typing import Any

from training.data.example import EmptyRow, Message, Row, kind_of, valid_text
from training.data.harmony import joined
from training.errors import DataError

CONVERSATION_COLUMNS = ("messages", "conversations", "conversation")
ROLES = ("system", "user", "assistant", "tool")
_OTHER_NAMES = {
    "developer": "system",
    "human": "user",
    "prompter": "user",
    "gpt": "assistant",
    "ai": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "function": "tool",
    "observation": "tool",
    "function_response": "tool",
    "function_call": "assistant",
}
_READ = {"role", "content", "from", "value"}
_EXCHANGES = (("human", "assistant"), ("input", "output"))
_TEXT = ("text", "input_text", "output_text", None)  # types of parts
_ANTHROPIC = ("tool_use", "tool_result", "server_tool_use", "redacted_thinking")
_REASONING = ("reasoning", "thinking")
_MESSAGES_FIX = "Each message is {role, content}."


def conversation(row: Row, column: str) -> list[Message]:
    """The messages in a column, with at least one answer. Raises EmptyRow if no assistant message has text or a tool call, and
    DataError as `turns`."""
    messages = turns(row, column)
    if not any(is_answer(message) for message in messages):
        message = "has no assistant message with text: nothing to train on."
        raise EmptyRow(message, "Add the assistant's answer, or delete the row.", field=column)
    return messages


def is_answer(message: Message) -> bool:
    """True if a message is the assistant's and has text or tool calls."""
    return message["role"] == "assistant" and bool(message["content"].strip() or message.get("tool_calls"))


def turns(row: Row, column: str) -> list[Message]:
    """The messages in a column: a list, a list as JSON text, or a single message. Null gives no messages. Raises DataError if the
    value or one of its messages has another type."""
    if column not in row:
        raise DataError("is missing.", "Add this column to every row, or delete the row.", field=column)
    value = from_json(row[column])
    listed = [value] if isinstance(value, dict) else [] if value is None else value
    if not isinstance(listed, list):
        raise DataError(f"is {kind_of(value)}, not a list of messages.", _MESSAGES_FIX, field=column)
    if any(is_exchange(entry) for entry in listed):
        listed = [turn for entry in listed for turn in (_exchange(entry) if is_exchange(entry) else [entry])]
    return joined([_message(entry, column, index) for index, entry in enumerate(listed)], column)


def is_exchange(entry: Any) -> bool:
    """True for a question and its answer in one object: `human` and `assistant`, as Firefly writes them, or `input` and `output`,
    as XTuner does."""
    return isinstance(entry, dict) and any(entry.keys() >= {*names} for names in _EXCHANGES)


def _exchange(entry: Row) -> list[Row]:
    asked, answered = next(names for names in _EXCHANGES if entry.keys() >= {*names})
    system = [{"role": "system", "content": entry["system"]}] if entry.get("system") else []
    return [*system, {"role": "user", "content": entry[asked]}, {"role": "assistant", "content": entry[answered]}]


def tools(row: Row) -> list[Row] | None:
    """The tools in a row's column `tools` (or `functions`): a list of objects, or that list as JSON text. Raises DataError if the
    value has another type."""
    value = from_json(row.get("tools"))
    if not value and (functions := from_json(row.get("functions"))):  # OpenAI's form before tools
        value = (
            [{"type": "function", "function": one} for one in functions] if isinstance(functions, list) else functions
        )
    if not value:
        return None
    if isinstance(value, list) and all(isinstance(tool, dict) for tool in value):
        return value
    fix = "Write a list of objects, or that list as JSON text."
    raise DataError(f"is {kind_of(value)}, not a list of tools.", fix, field="tools")


def from_json(value: Any) -> Any:
    """Decodes a list or object written as JSON text (in CSV and some Parquet files); returns any other value unchanged."""
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
    name = given.strip().lower() if isinstance(given, str) else ""
    role = name if name in ROLES else _OTHER_NAMES.get(name)
    if role is None:
        place = f"{column}[{index}].role"
        raise DataError(f"has the unknown role {given!r}.", f"Use one of {', '.join(ROLES)}.", field=place)
    content = entry.get("content", entry.get("value"))
    message: Message = {"role": role}
    if name == "function_call":
        return message | _function_call(content, f"{column}[{index}].value")
    if entry.keys() - _READ:
        message |= {key: value for key, value in entry.items() if value is not None and key not in _READ}
        if "function_call" in message:  # OpenAI's form before tools
            message |= _function_call(message.pop("function_call"), f"{column}[{index}].function_call")
        if "tool_calls" in message:
            message["tool_calls"] = _tool_calls(message["tool_calls"], f"{column}[{index}].tool_calls")
    place = f"{column}[{index}].content"
    if isinstance(content, list):
        return message | _parts(content, place)
    message["content"] = "" if content is None and message.get("tool_calls") else valid_text(content, place)
    return message


def _parts(parts: list[Any], place: str) -> Message:
    """The text, the reasoning and the tool calls of a list of typed parts."""
    message: Message = {"content": ""}
    for index, part in enumerate(parts):
        here = f"{place}[{index}]"
        kind = part.get("type") if isinstance(part, dict) else kind_of(part)
        value = part.get("text", part.get("value", part.get("thinking"))) if isinstance(part, dict) else None
        if kind == "tool_call":
            message["tool_calls"] = [*message.get("tool_calls", []), *_function_call(value, here)["tool_calls"]]
        elif kind in _REASONING:
            message["reasoning_content"] = message.get("reasoning_content", "") + valid_text(value, here)
        elif kind in _TEXT and isinstance(value, str):
            message["content"] += valid_text(value, here)
        elif kind in _ANTHROPIC:
            fix = "Write calls as tool_calls of the message and results as messages of the role tool, as OpenAI does."
            raise DataError(f"is {kind!r}, a part of Anthropic's, which is not read.", fix, field=here)
        else:
            raise DataError(f"is {kind!r}, not text.", "Lathe trains on text: delete the row.", field=here)
    return message


def _tool_calls(value: Any, place: str) -> list[Row]:
    calls = from_json(value)
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise DataError(f"is {kind_of(calls)}, not a list of calls.", "Write a list of objects.", field=place)
    return [_call(call) for call in calls]


def _call(call: Row) -> Row:
    """A call with its arguments as an object: templates write them as JSON, which would quote text twice."""
    function = call.get("function")
    if isinstance(function, dict):
        return {key: value for key, value in call.items() if value is not None} | {"function": _call(function)}
    return call | {"arguments": from_json(call["arguments"])} if "arguments" in call else call


def _function_call(value: Any, place: str) -> Message:
    """The message of role `function_call`, whose value is a call or a list of calls as JSON text."""
    call = from_json(value)
    calls = call if isinstance(call, list) else [call]
    if not all(isinstance(element, dict) and "name" in element for element in calls):
        raise DataError("is not a function call.", 'Write {"name": ..., "arguments": {...}} as JSON text.', field=place)
    return {"content": "", "tool_calls": [{"type": "function", "function": _call(element)} for element in calls]}


def root_of(row: Row) -> Row | None:
    """The first message of a row that is a tree, or that has one in its column `prompt`; None for other rows."""
    prompt = row.get("prompt")
    root = prompt if isinstance(prompt, dict) else row
    is_tree = isinstance(root.get("replies"), list) and isinstance(root.get("text"), str) and "role" in root
    return root if is_tree else None


def best_path(root: Row) -> tuple[list[Row], int]:
    """The messages (role and content) from the root through the best reply of each, and the number of other replies beside them.

    The best reply has the lowest rank; of replies without ranks it is the first. Questions after the last answer are left out.
    """
    path: list[Row] = []
    others = 0
    message: Any = root
    while isinstance(message, dict):
        path.append({"role": message.get("role"), "content": message.get("text")})
        replies = [
            reply
            for reply in message.get("replies") or []
            if isinstance(reply, dict) and not reply.get("deleted") and isinstance(reply.get("text"), str)
        ]
        others += max(0, len(replies) - 1)
        message = min(replies, key=_rank, default=None)
    while path and path[-1]["role"] in ("prompter", "user", "human"):
        path.pop()
    return path, others


def _rank(reply: Row) -> float:
    rank = reply.get("rank")
    return float(rank) if isinstance(rank, (int, float)) else float("inf")
