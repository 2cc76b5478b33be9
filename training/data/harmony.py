"""Messages with Harmony's channels (gpt-oss): reasoning and calls, messages of their own there, are joined with their answer."""

import json
from typing import Any

from training.data.example import Message
from training.errors import DataError

_ANALYSIS, _COMMENTARY, _FINAL = "analysis", "commentary", "final"
_CHANNELS = (_ANALYSIS, _COMMENTARY, _FINAL)
_REASONING = "thinking"  # as gpt-oss's chat template names it
_PARTS = frozenset({"role", "content", "channel", "recipient", "content_type"})


def joined(messages: list[Message], column: str) -> list[Message]:
    """The messages with analysis as the reasoning of the answer after it, and commentary to a function as its call.

    Raises:
        DataError: no answer follows reasoning, both have different values of another key, or commentary is neither a call nor
            belongs to one.
    """
    if not any(_channel(message) for message in messages):
        return messages
    kept: list[Message] = []
    thoughts: list[Message] = []
    for index, message in enumerate(messages):
        place = f"{column}[{index}]"
        if _channel(message) == _ANALYSIS and "recipient" not in message:
            thoughts.append(message)
            continue
        answer = _answer(message, place)
        if thoughts:
            answer, thoughts = _with_thoughts(answer, thoughts, f"{column}[{index - 1}]"), []
        kept.append(answer)
    if thoughts:
        raise _unanswered(f"{column}[{len(messages) - 1}]")
    return kept


def _channel(message: Message) -> str | None:
    name = message.get("channel")
    return name if message["role"] == "assistant" and name in _CHANNELS else None


def _answer(message: Message, place: str) -> Message:
    channel = _channel(message)
    if channel is None:
        return message
    if "recipient" in message:
        return _call(message, place)
    if channel == _COMMENTARY and not message.get("tool_calls"):
        fix = "Leave it out, or give it the recipient of a call (functions.NAME)."
        raise DataError("is Harmony's commentary without a call, which chat templates cannot write.", fix, field=place)
    return {key: value for key, value in message.items() if key != "channel"}


def _call(message: Message, place: str) -> Message:
    name = str(message["recipient"]).removeprefix("functions.")
    try:
        arguments: Any = json.loads(message["content"])
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        fix = 'Write the arguments of the call as JSON text, such as {"city": "Rome"}.'
        raise DataError(f"is a call of {name} whose content is not a JSON object.", fix, field=f"{place}.content")
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    more = {key: value for key, value in message.items() if key not in _PARTS}
    return {"role": "assistant", "content": "", "tool_calls": [call], **more}


def _with_thoughts(answer: Message, thoughts: list[Message], place: str) -> Message:
    if answer["role"] != "assistant":
        raise _unanswered(place)
    keys = {key for thought in thoughts for key in thought} - _PARTS
    if other := next(
        (key for thought in thoughts for key in sorted(keys) if thought.get(key) != answer.get(key)), None
    ):
        fix = f"Give both messages the same {other}."
        raise DataError(f"is the reasoning of the next message, and has another {other}.", fix, field=place)
    return answer | {_REASONING: "\n".join(str(thought["content"]) for thought in thoughts)}


def _unanswered(place: str) -> DataError:
    fix = "Add the answer (channel final), or leave the reasoning out."
    return DataError("is Harmony's channel analysis (reasoning), and no answer follows it.", fix, field=place)
