"""Turns a row of any known format into a training example. No torch."""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from training.data.conversations import (
    CONVERSATION_COLUMNS,
    best_path,
    conversation,
    from_json,
    is_answer,
    root_of,
    tools,
    turns,
)
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
from training.data.forms import known_row
from training.data.mapping import through
from training.data.row_format import RowFormat
from training.data.usual_columns import in_roles
from training.errors import DataError

_TURN = re.compile(r"(?:^|\n\n)(Human|Assistant|System):[ \n]?")
_SPEAKERS = {"Human": "user", "Assistant": "assistant", "System": "system"}
_NO_PROMPT_FIX = "Name the column with the prompt `prompt`, or set a column mapping."


def to_example(row: Row, row_format: str) -> Example:
    """The example of a row of that format. Raises EmptyRow if the prompt or the answer is empty, and DataError if a required
    value is missing or has a wrong type, or the row has images, audio or video."""
    refuse_media_columns(row)
    row = known_row(row)
    roles = in_roles(row, row_format)
    read = _READERS[RowFormat(row_format)]
    example = through(roles, row, read) if roles else read(row)
    refuse_placeholders(example)
    return example


def _messages(row: Row) -> Example:
    column = next((name for name in CONVERSATION_COLUMNS if name in row), "messages")
    messages = conversation(row, column)
    return Example(messages=_system(row, messages) + messages, tools=tools(row))


def _prompt_completion(row: Row) -> Example:
    turned = {name for name in ("prompt", "completion") if isinstance(from_json(row.get(name)), list)}
    if turned:
        asked = turns(row, "prompt") if "prompt" in turned else _turn("user", filled(row, "prompt"))
        answered = turns(row, "completion") if "completion" in turned else _turn("assistant", filled(row, "completion"))
        conversation({"completion": answered}, "completion")
        return Example(messages=_system(row, asked) + asked + answered, tools=tools(row))
    prompt_text, answer_text = filled(row, "prompt"), filled(row, "completion")
    if row.get("system"):
        messages = _system(row, []) + _turn("user", prompt_text) + _turn("assistant", answer_text)
        return Example(messages=messages, tools=tools(row))
    return Example(prompt=prompt_text, answer=answer_text)


def _prompt(row: Row) -> Example:
    """A prompt without an answer: a text, or messages that end with a question; or an instruction."""
    if "prompt" not in row and "instruction" in row:
        return Example(messages=_asked(row), answered=False)
    if not isinstance(from_json(row.get("prompt")), list):
        asked = filled(row, "prompt")
        if not row.get("system"):
            return Example(prompt=asked, answered=False)
        messages = _turn("user", asked)
    elif (messages := turns(row, "prompt")) and messages[-1]["role"] not in ("user", "tool"):
        fix = "Let it end with a message of the user, and put the answer into the column completion."
        raise DataError(f"ends with a message of the role {messages[-1]['role']}.", fix, field="prompt")
    if not messages or (messages[-1].get("content") is not None and not str(messages[-1]["content"]).strip()):
        raise EmptyRow("is empty: nothing to answer.", "Fill it in, or delete the row.", field="prompt")
    return Example(messages=_system(row, messages) + messages, tools=tools(row), answered=False)


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
    """A pair in the columns chosen and rejected. The prompt has its own column, or is their common beginning."""
    if "instruction" in row and not any(name in row for name in ("prompt", *CONVERSATION_COLUMNS)):
        row = {name: value for name, value in row.items() if name not in ("system", "history")} | {
            "prompt": _asked(row)
        }
    if "chosen" not in row and is_answer_pair(row.get("output")):
        row = row | dict(zip(("chosen", "rejected"), row["output"], strict=True))
    if _is_conversation(row.get("chosen")):
        return _conversation_pair(row, turns(row, "chosen"), turns(row, "rejected"), _before(row))
    chosen, rejected = filled(row, "chosen"), filled(row, "rejected")
    before = _before(row)
    if isinstance(before, list):
        return _pair(row, before, _turn("assistant", chosen), _turn("assistant", rejected))
    if not before and _TURN.match(chosen) and _TURN.match(rejected):
        return _pair(row, *_split_turns(_dialogue(chosen), _dialogue(rejected)))
    if not before:
        before, chosen, rejected = _split_texts(chosen, rejected)
    if not row.get("system"):
        return Example(prompt=before, answer=chosen, rejected=rejected)
    chat = _system(row, []) + _turn("user", before) + _turn("assistant", chosen)
    return Example(messages=chat, rejected=_turn("assistant", rejected))


def _conversation_pair(
    row: Row, chosen: list[Message], rejected: list[Message], before: str | list[Message]
) -> Example:
    """Answers as messages: either the answer only, or the complete conversation."""
    if before and chosen[:1] and chosen[0]["role"] == "assistant":
        return _pair(row, _turn("user", before) if isinstance(before, str) else before, chosen, rejected)
    return _pair(row, *_split_turns(chosen, rejected))


def _pair(row: Row, before: list[Message], chosen: list[Message], rejected: list[Message]) -> Example:
    for column, answer in (("chosen", chosen), ("rejected", rejected)):
        if not any(is_answer(message) for message in answer):
            raise EmptyRow("has no answer from the assistant.", "Fill it in, or delete the row.", field=column)
    messages = [*_system(row, before), *before, *chosen]
    return Example(messages=messages, tools=tools(row), rejected=rejected, answer_turns=len(chosen))


def _before(row: Row) -> str | list[Message]:
    """The prompt from its own column; empty if there is none."""
    for column in ("prompt", *CONVERSATION_COLUMNS):
        if column in row:
            return turns(row, column) if _is_conversation(row[column]) else text(row, column)
    return ""


def _split_turns(chosen: list[Message], rejected: list[Message]) -> tuple[list[Message], list[Message], list[Message]]:
    # Both answers may be equal; then the last turn of each is the answer.
    same = min(_common_length(chosen, rejected), len(chosen) - 1, len(rejected) - 1)
    if same < 1:
        raise DataError("and rejected do not start with the same turns.", _NO_PROMPT_FIX, field="chosen")
    return chosen[:same], chosen[same:], rejected[same:]


def _split_texts(chosen: str, rejected: str) -> tuple[str, str, str]:
    """Splits texts after their common beginning, the prompt, which ends at a space or line break."""
    common = chosen[: _common_length(chosen, rejected)]
    end = max((match.end() for match in re.finditer(r"\s+", common)), default=0)
    if not common[:end].strip():
        message = "and rejected have no common beginning, and there is no prompt column."
        raise DataError(message, _NO_PROMPT_FIX, field="chosen")
    if not chosen[end:].strip():
        raise EmptyRow("contains only the common beginning.", "Fill it in, or delete the row.", field="chosen")
    return common[:end], chosen[end:], rejected[end:]


def _dialogue(dialogue: str) -> list[Message]:
    """The turns of a text with `Human:` and `Assistant:`."""
    parts = _TURN.split(dialogue)[1:]
    return [
        {"role": _SPEAKERS[speaker], "content": content.strip()}
        for speaker, content in zip(parts[::2], parts[1::2], strict=True)
    ]


def _common_length(first: Iterable[Any], second: Iterable[Any]) -> int:
    count = 0
    for left, right in zip(first, second, strict=False):
        if left != right:
            break
        count += 1
    return count


def _is_conversation(value: Any) -> bool:
    value = from_json(value)
    return isinstance(value, dict) or (isinstance(value, list) and all(isinstance(turn, dict) for turn in value))


def _unpaired(row: Row) -> Example:
    if "label" not in row:
        raise DataError("is missing.", "Add this column to every row, or delete the row.", field="label")
    example = _messages(row) if any(name in row for name in CONVERSATION_COLUMNS) else _prompt_completion(row)
    return replace(example, label=_label(row["label"]))


def is_answer_pair(value: Any) -> bool:
    """True for a chosen and a rejected answer in one list, an older form of LLaMA-Factory's."""
    return isinstance(value, list) and len(value) == 2 and all(isinstance(answer, str) for answer in value)


def _label(value: Any) -> bool:
    """The label of an unpaired answer: true or 1 for good, false or 0 for bad, also as text. Raises DataError if it is none of
    these."""
    meaning = {True: True, False: False, "true": True, "false": False, "1": True, "0": False}
    key = value.strip().lower() if isinstance(value, str) else value
    if isinstance(key, (str, int)) and key in meaning:
        return meaning[key]
    fix = "Write true for a good answer, false for a bad one."
    raise DataError(f"is {kind_of(value)}, not a label.", fix, field="label")


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


_READERS: dict[RowFormat, Callable[[Row], Example]] = {
    RowFormat.ALPACA: _alpaca,
    RowFormat.SHAREGPT: _messages,
    RowFormat.MESSAGES: _messages,
    RowFormat.COMPLETION: _prompt_completion,
    RowFormat.PROMPT: _prompt,
    RowFormat.PREFERENCE: _preference,
    RowFormat.UNPAIRED: _unpaired,
    RowFormat.TREE: _tree,
    RowFormat.TEXT: _text,
    RowFormat.CLASSIFIED: _text_label,
    RowFormat.TRANSLATED: _source_target,
}
