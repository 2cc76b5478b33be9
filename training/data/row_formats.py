"""Detects the format of a row from its columns and the types of their values. No torch."""

import re
from dataclasses import dataclass, replace
from typing import Any

from training.data.conversations import CONVERSATION_COLUMNS, from_json, is_exchange, root_of
from training.data.example import Row, kind_of, refuse_media_columns
from training.data.forms import form_name, known_row
from training.data.row_format import RowFormat
from training.data.suggested_mapping import may_pair, pair_beside_text
from training.data.to_examples import is_answer_pair
from training.data.usual_columns import NAMES, usual_columns
from training.errors import DataError

UNKNOWN = "unknown"
_QUESTIONS, _CHOICES = frozenset(NAMES["questions"]), frozenset(NAMES["choices"])
_ANSWERS = re.compile(
    r"(?:response|answer|completion|output|reply)s?[ _-]?(?:\d+|[a-e])|(?:non_|dis)?preferred|other|better|worse|winner|loser"
)
_SENTENCE = re.compile(r".*[?!]|.{48,}|[-+]?\d+(?:[.,]\d+)?")
_WRAPPERS = ("data", "rows", "train", "examples", "items")
_NAMED = 8
MAPPED = "mapped"
UNKNOWN_FIX = (
    "Name the columns after a known format (instruction and output, messages, prompt and completion, chosen and rejected, "
    "source and target, prompt, or text), or set a column mapping."
)
NO_EXPECTED = "compares with the expected answer, and the rows are prompts without one."
ANSWERS_FIX = "Or say which column has the answers: columns prompt=prompt, completion=COLUMN."


@dataclass(frozen=True)
class DetectedFormat:
    """A row format and the reason for it, as a sentence about every row."""

    format: str
    reason: str


class UnknownFormat(DataError):  # noqa: N818
    """The columns match no known format. A column mapping can assign them."""


def find_format(row: Row) -> DetectedFormat:
    """The format of a row. Raises UnknownFormat if the columns match no known format, and DataError if it is not a row but
    contains the list of rows."""
    name, row = form_name(row), known_row(row)
    detected = _preference(row) or _conversation(row) or (_TREE if root_of(row) else _columns(row)) or _usual(row)
    detected = detected or (_ALONE if _is_prompt_alone(row) else None)
    if detected is None:
        raise _unknown(row)
    if detected is _TEXT:
        _check_text_alone(row)
    return replace(detected, reason=f"every row has the form of {name}") if name else detected


def _check_text_alone(row: Row) -> None:
    """Checks that a column `text` is not beside a pair, or one message of a conversation. Raises UnknownFormat if it is, so that
    rows of text are only a guess."""
    if row.get("parent_id", row.get("message_tree_id")) and row.get("role"):
        message = "is one message of a conversation (it has role and parent_id), not a whole one."
        raise UnknownFormat(message, "Use the file with trees, or set the column mapping to text=text.", field="text")
    question = next(
        (name for name in row if name.lower() in _QUESTIONS and isinstance(row[name], str) and row[name]), None
    )
    mapping = f"prompt={question}, completion=text" if question else None
    if mapping := pair_beside_text(row) or mapping:
        fix = f"Set the column mapping to {mapping}, or to text=text to train on that column alone."
        raise UnknownFormat("has a column text beside columns that form a pair.", fix, field="text")


def _unknown(row: Row) -> DataError:
    for name, value in row.items():
        if (len(row) == 1 or name in _WRAPPERS) and isinstance(value, list) and value and isinstance(value[0], dict):
            message = f"is not a row, but contains a list of rows under {name!r}."
            return DataError(message, f"Save the list under {name!r} as its own file.", field=name)
    refuse_media_columns(row)
    for names, detected in _FLAT:
        if names <= row.keys():  # the names are those of a format, and a value is not
            name = next(name for name in sorted(names) if not _is_flat(row[name], names))
            message = f"is {kind_of(row[name])} where the format {detected.format} has text, so the row matches no known format."
            return UnknownFormat(message, UNKNOWN_FIX, field=name)
    if choices := next(
        (name for name in row if name.lower() in _CHOICES and isinstance(from_json(row[name]), list | dict)), None
    ):
        fix = "Write the choices into the question, and the answer as the model shall give it, before the import."
        return UnknownFormat(
            "has choices, which no column mapping joins to the question: no known format.",
            fix,
            field=choices,
        )
    if data := next((name for name in row if _SENTENCE.fullmatch(name.strip())), None):
        message = (
            f"has no header: its first row, with {data[:40]!r}, looks like data, and became the names of the columns."
        )
        return UnknownFormat(message, "Add a first line with the names of the columns, such as prompt,completion.")
    if {"role", "content"} <= row.keys() or {"from", "value"} <= row.keys():
        message = "is one message of a conversation, not a row."
        return UnknownFormat(message, 'Put the messages of each conversation into a list: {"messages": [...]}.')
    columns = f"has the columns {named(list(row))}" if row else "has no columns"
    return UnknownFormat(f"{columns}, which match no known format.", UNKNOWN_FIX)


def named(columns: list[str]) -> str:
    """The names of the first columns as text: 'a', 'b' and more."""
    return listed([repr(name) for name in columns[:_NAMED]] + (["more"] if len(columns) > _NAMED else []))


def listed(names: list[str]) -> str:
    """Names as text: a, b and c."""
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)


def _every(names: str, more: str = "") -> str:
    return f"every row has the columns {names}{more}"


_EXPLICIT = DetectedFormat(RowFormat.PREFERENCE, _every("prompt, chosen and rejected"))
_CONVERSATIONS = DetectedFormat(
    RowFormat.PREFERENCE, _every("chosen and rejected", ", two conversations with the same beginning")
)
_TEXTS = DetectedFormat(RowFormat.PREFERENCE, _every("chosen and rejected", ", two texts with the same beginning"))
_INSTRUCTION = DetectedFormat(RowFormat.PREFERENCE, _every("instruction, chosen and rejected"))
_TWO_OUTPUTS = DetectedFormat(
    RowFormat.PREFERENCE, _every("instruction and output", ", the chosen and the rejected answer")
)
_LABELED = DetectedFormat(RowFormat.UNPAIRED, _every("prompt, completion and label", " (true or false)"))
_TEXT = DetectedFormat(RowFormat.TEXT, "every row has the column text")
_ALONE = DetectedFormat(RowFormat.PROMPT, "every row has the column prompt, and no answer")
_TREE = DetectedFormat(RowFormat.TREE, _every("role, text and replies", ", a tree of messages"))
_FLAT = (
    (frozenset({"prompt", "completion"}), DetectedFormat(RowFormat.COMPLETION, _every("prompt and completion"))),
    (frozenset({"instruction", "output"}), DetectedFormat(RowFormat.ALPACA, _every("instruction and output"))),
    (frozenset({"source", "target"}), DetectedFormat(RowFormat.TRANSLATED, _every("source and target"))),
    (frozenset({"text", "label"}), DetectedFormat(RowFormat.CLASSIFIED, _every("text and label"))),
    (frozenset({"text"}), _TEXT),
)
_ALPACA_INPUT = DetectedFormat(RowFormat.ALPACA, _every("instruction, input and output"))


def _preference(row: Row) -> DetectedFormat | None:
    if "instruction" in row and "chosen" not in row and is_answer_pair(row.get("output")):
        return _TWO_OUTPUTS
    if "chosen" not in row or "rejected" not in row:
        return None
    for name in CONVERSATION_COLUMNS:
        if name in row:
            return DetectedFormat(RowFormat.PREFERENCE, _every(f"{name}, chosen and rejected"))
    if "prompt" in row or "instruction" in row:
        return _EXPLICIT if "prompt" in row else _INSTRUCTION
    if usual_columns(row):  # which name the question
        return None
    return _CONVERSATIONS if isinstance(from_json(row["chosen"]), list) else _TEXTS


def _conversation(row: Row) -> DetectedFormat | None:
    for name in CONVERSATION_COLUMNS:
        if name in row:
            turns = from_json(row[name])
            if isinstance(turns, list) or turns is None:
                if _is_label(row.get("label")):
                    return DetectedFormat(RowFormat.UNPAIRED, _every(f"{name} and label", " (true or false)"))
                return _turns(name, turns)
    return None


def _turns(name: str, turns: list[Any] | None) -> DetectedFormat | None:
    first = turns[0] if turns else {}
    if is_exchange(first):
        return _list(RowFormat.SHAREGPT, name, "human and assistant texts")
    if isinstance(first, dict) and ("from" in first or "value" in first or (not first and name != "messages")):
        return _list(RowFormat.SHAREGPT, name, "turns with from and value")
    if not first or (isinstance(first, dict) and "role" in first):
        return _list(RowFormat.MESSAGES, name, "turns with role and content")
    return None


def _list(row_format: str, column: str, content: str) -> DetectedFormat:
    return DetectedFormat(row_format, f"every row has the column {column}, a list of {content}")


def _columns(row: Row) -> DetectedFormat | None:
    for names, detected in _FLAT:
        if names <= row.keys() and all(_is_flat(row[name], names) for name in names):
            if "label" in row and "prompt" in names and _is_label(row["label"]):
                return _LABELED
            return _ALPACA_INPUT if detected.format == RowFormat.ALPACA and "input" in row else detected
    return None


def _usual(row: Row) -> DetectedFormat | None:
    found = usual_columns(row)
    if found is None:
        return None
    roles = listed([f"{path} as {role}" for role, path in found[1].items()])
    return DetectedFormat(found[0], f"every row has the columns {roles}")


def _is_prompt_alone(row: Row) -> bool:
    """True for a prompt without a column that may be its answer: with one, a person says which is."""
    turns = from_json(row.get("prompt"))
    if isinstance(turns, list):
        is_prompt = bool(turns) and all(isinstance(turn, dict) and "role" in turn for turn in turns)
    else:
        is_prompt = isinstance(row.get("prompt"), str)
    answers = {"chosen", "rejected"} & row.keys() or any(_ANSWERS.fullmatch(name.lower()) for name in row)
    return is_prompt and not answers and not may_pair(frozenset(row))


def _is_flat(value: Any, names: frozenset[str]) -> bool:
    """False for an object or a list, which need a column mapping; prompt and completion may be lists of messages.

    True for a number: reading the row then reports that it is not text.
    """
    if isinstance(value, str):
        return True
    if isinstance(value, list):
        return "prompt" in names and (not value or (isinstance(value[0], dict) and "role" in value[0]))
    return not isinstance(value, dict)


def _is_label(value: Any) -> bool:
    return value in (True, False) if isinstance(value, int) else str(value).strip().lower() in ("true", "false")
