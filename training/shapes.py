"""Rows of every known format turned into the form the trainer takes. No torch."""

from collections.abc import Callable

from training.example import EmptyRow, Example, Message, Row, filled, kind_of, text
from training.failure import DataError
from training.messages import conversation, from_json, tools, turns
from training.preferences import label, read_pair

__all__ = ["FORMATS", "EmptyRow", "Example", "Message", "Row", "to_example"]


def to_example(row: Row, format: str) -> Example:
    """One row of that format in the form the trainer takes; a preference pair trains on its chosen answer.

    Raises:
        EmptyRow: prompt or answer are empty, so the row has nothing to teach.
        DataError: a needed value is missing or of the wrong type.
    """
    return _READERS[format](row)


def _messages(row: Row) -> Example:
    column = next((name for name in CONVERSATION_COLUMNS if name in row), "messages")
    messages = conversation(row, column)
    return Example(messages=_system(row, messages) + messages, tools=tools(row))


def _prompt_completion(row: Row) -> Example:
    prompt, answer = row.get("prompt"), row.get("completion")
    if isinstance(from_json(prompt), list) or isinstance(from_json(answer), list):
        asked = turns(row, "prompt") if isinstance(from_json(prompt), list) else _said("user", filled(row, "prompt"))
        said = (
            turns(row, "completion")
            if isinstance(from_json(answer), list)
            else _said("assistant", filled(row, "completion"))
        )
        conversation({"completion": said}, "completion")
        return Example(messages=_system(row, asked) + asked + said, tools=tools(row))
    asked_text, said_text = filled(row, "prompt"), filled(row, "completion")
    if row.get("system"):
        messages = _system(row, []) + _said("user", asked_text) + _said("assistant", said_text)
        return Example(messages=messages, tools=tools(row))
    return Example(prompt=asked_text, answer=said_text)


def _alpaca(row: Row) -> Example:
    asked, more = text(row, "instruction"), text(row, "input") if "input" in row else ""
    asked = f"{asked}\n\n{more}" if asked and more else asked or more
    if not asked or asked.isspace():
        raise EmptyRow("is empty: there is nothing to answer.", "Fill it in, or delete the row.", field="instruction")
    before = _system(row, []) + (_history(row) if "history" in row else [])
    return Example(messages=[*before, *_said("user", asked), *_said("assistant", filled(row, "output"))])


def _history(row: Row) -> list[Message]:
    """Earlier turns: a list of question and answer pairs."""
    listed = from_json(row["history"]) or []
    messages: list[Message] = []
    for index, pair in enumerate(listed if isinstance(listed, list) else [listed]):
        place = f"history[{index}]"
        if not isinstance(pair, list) or len(pair) != 2:
            raise DataError(
                f"is {kind_of(pair)}, not a question and its answer.", "Give [question, answer].", field=place
            )
        parts = {place: pair[0], f"{place}[1]": pair[1]}
        messages += _said("user", text(parts, place)) + _said("assistant", text(parts, f"{place}[1]"))
    return messages


def _preference(row: Row) -> Example:
    pair = read_pair(row)
    if isinstance(pair.beginning, str) and isinstance(pair.chosen, str):
        if not row.get("system"):
            return Example(prompt=pair.beginning, answer=pair.chosen, rejected=pair.rejected)
        said = _system(row, []) + _said("user", pair.beginning) + _said("assistant", pair.chosen)
        return Example(messages=said, rejected=_said("assistant", str(pair.rejected)))
    before, chosen = pair.messages()
    messages = [*_system(row, before), *before, *chosen]
    return Example(messages=messages, tools=tools(row), rejected=pair.rejected, answer_turns=len(chosen))


def _unpaired(row: Row) -> Example:
    if "label" not in row:
        raise DataError("is missing.", "Give every row this column, or delete the row.", field="label")
    found = _messages(row) if any(name in row for name in CONVERSATION_COLUMNS) else _prompt_completion(row)
    return Example(found.messages, found.prompt, found.answer, found.tools, label=label(row["label"]))


def _text(row: Row) -> Example:
    return Example(answer=filled(row, "text"))


def _text_label(row: Row) -> Example:
    """A text and its class: the class is what a prompt's answer would be."""
    value = row.get("label")
    if isinstance(value, (bool, int)):
        return Example(prompt=filled(row, "text"), answer=str(value))
    return Example(prompt=filled(row, "text"), answer=filled(row, "label"))


def _source_target(row: Row) -> Example:
    return Example(prompt=filled(row, "source"), answer=filled(row, "target"))


def _system(row: Row, messages: list[Message]) -> list[Message]:
    """The row's own system prompt, where the conversation does not begin with one."""
    if not row.get("system") or (messages and messages[0]["role"] == "system"):
        return []
    return _said("system", text(row, "system"))


def _said(role: str, content: str) -> list[Message]:
    return [{"role": role, "content": content}]


CONVERSATION_COLUMNS = ("messages", "conversations", "conversation")
_READERS: dict[str, Callable[[Row], Example]] = {
    "alpaca": _alpaca,
    "sharegpt": _messages,
    "messages": _messages,
    "prompt/completion": _prompt_completion,
    "preference": _preference,
    "unpaired preference": _unpaired,
    "text": _text,
    "text/label": _text_label,
    "source/target": _source_target,
}
FORMATS = tuple(_READERS)
