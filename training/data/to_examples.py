"""Turns a row of any known format into a training example. No torch."""

from collections.abc import Callable
from dataclasses import replace

from training.data.conversations import CONVERSATION_COLUMNS, best_path, conversation, from_json, root_of, tools, turns
from training.data.example import (
    EmptyRow,
    Example,
    Message,
    Row,
    filled,
    kind_of,
    refuse_media_columns,
    refuse_placeholders,
    text,
)
from training.data.mapping import through
from training.data.preferences import label, read_pair
from training.data.usual_columns import in_roles
from training.errors import DataError


def to_example(row: Row, row_format: str) -> Example:
    """The example of a row of that format.

    Raises:
        EmptyRow: the prompt or the answer is empty.
        DataError: a required value is missing or has a wrong type, or the row has images, audio or video.
    """
    refuse_media_columns(row)
    roles = in_roles(row, row_format)
    read = _READERS[row_format]
    example = through(roles, row, read) if roles else read(row)
    refuse_placeholders(example)
    return example


def _messages(row: Row) -> Example:
    column = next((name for name in CONVERSATION_COLUMNS if name in row), "messages")
    messages = conversation(row, column)
    return Example(messages=_system(row, messages) + messages, tools=tools(row))


def _prompt_completion(row: Row) -> Example:
    prompt, answer = row.get("prompt"), row.get("completion")
    if isinstance(from_json(prompt), list) or isinstance(from_json(answer), list):
        asked = turns(row, "prompt") if isinstance(from_json(prompt), list) else _turn("user", filled(row, "prompt"))
        answered = (
            turns(row, "completion")
            if isinstance(from_json(answer), list)
            else _turn("assistant", filled(row, "completion"))
        )
        conversation({"completion": answered}, "completion")
        return Example(messages=_system(row, asked) + asked + answered, tools=tools(row))
    prompt_text, answer_text = filled(row, "prompt"), filled(row, "completion")
    if row.get("system"):
        messages = _system(row, []) + _turn("user", prompt_text) + _turn("assistant", answer_text)
        return Example(messages=messages, tools=tools(row))
    return Example(prompt=prompt_text, answer=answer_text)


def _alpaca(row: Row) -> Example:
    return Example(messages=[*_asked(row), *_turn("assistant", filled(row, "output"))])


def _asked(row: Row) -> list[Message]:
    """The turns before the answer of a row with an instruction: system prompt, history, and the instruction with its input."""
    instruction, more = text(row, "instruction"), text(row, "input") if "input" in row else ""
    instruction = f"{instruction}\n\n{more}" if instruction and more else instruction or more
    if not instruction or instruction.isspace():
        raise EmptyRow("is empty: nothing to answer.", "Fill it in, or delete the row.", field="instruction")
    before = _system(row, []) + (_history(row) if "history" in row else [])
    return [*before, *_turn("user", instruction)]


def _history(row: Row) -> list[Message]:
    """Earlier turns, from a list of [question, answer] pairs."""
    pairs = from_json(row["history"]) or []
    messages: list[Message] = []
    for index, pair in enumerate(pairs if isinstance(pairs, list) else [pairs]):
        place = f"history[{index}]"
        if not isinstance(pair, list) or len(pair) != 2:
            raise DataError(
                f"is {kind_of(pair)}, not a question and an answer.", "Write [question, answer].", field=place
            )
        parts = {place: pair[0], f"{place}[1]": pair[1]}
        messages += _turn("user", text(parts, place)) + _turn("assistant", text(parts, f"{place}[1]"))
    return messages


def _preference(row: Row) -> Example:
    if "instruction" in row and not any(name in row for name in ("prompt", *CONVERSATION_COLUMNS)):
        row = {name: value for name, value in row.items() if name not in ("system", "history")} | {
            "prompt": _asked(row)
        }
    pair = read_pair(row)
    if isinstance(pair.beginning, str) and isinstance(pair.chosen, str):
        if not row.get("system"):
            return Example(prompt=pair.beginning, answer=pair.chosen, rejected=pair.rejected)
        chat = _system(row, []) + _turn("user", pair.beginning) + _turn("assistant", pair.chosen)
        return Example(messages=chat, rejected=_turn("assistant", str(pair.rejected)))
    before, chosen = pair.messages()
    messages = [*_system(row, before), *before, *chosen]
    return Example(messages=messages, tools=tools(row), rejected=pair.rejected, answer_turns=len(chosen))


def _unpaired(row: Row) -> Example:
    if "label" not in row:
        raise DataError("is missing.", "Add this column to every row, or delete the row.", field="label")
    example = _messages(row) if any(name in row for name in CONVERSATION_COLUMNS) else _prompt_completion(row)
    return replace(example, label=label(row["label"]))


def _tree(row: Row) -> Example:
    messages, _ = best_path(root_of(row) or {})
    return Example(messages=conversation({"replies": messages}, "replies"))


def _text(row: Row) -> Example:
    return Example(answer=filled(row, "text"))


def _text_label(row: Row) -> Example:
    """A text as the prompt and its class as the answer."""
    value = row.get("label")
    if isinstance(value, (bool, int)):
        return Example(prompt=filled(row, "text"), answer=str(value))
    return Example(prompt=filled(row, "text"), answer=filled(row, "label"))


def _source_target(row: Row) -> Example:
    return Example(prompt=filled(row, "source"), answer=filled(row, "target"))


def _system(row: Row, messages: list[Message]) -> list[Message]:
    """The row's system prompt, unless the conversation starts with one."""
    if not row.get("system") or (messages and messages[0]["role"] == "system"):
        return []
    return _turn("system", text(row, "system"))


def _turn(role: str, content: str) -> list[Message]:
    return [{"role": role, "content": content}]


_READERS: dict[str, Callable[[Row], Example]] = {
    "alpaca": _alpaca,
    "sharegpt": _messages,
    "messages": _messages,
    "prompt/completion": _prompt_completion,
    "preference": _preference,
    "unpaired preference": _unpaired,
    "message tree": _tree,
    "text": _text,
    "text/label": _text_label,
    "source/target": _source_target,
}
FORMATS = tuple(_READERS)
