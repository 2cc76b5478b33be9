"""Which of the known formats a row has, told by its columns and by what kind of value is in them. No torch."""

from dataclasses import dataclass
from typing import Any

from training.example import Row
from training.failure import DataError
from training.messages import from_json
from training.shapes import CONVERSATION_COLUMNS

UNKNOWN = "unknown"
_HOLDERS = ("data", "rows", "train", "examples", "items")
_NAMED = 8
MAPPED = "mapped"
UNKNOWN_FIX = (
    "Name the columns after a known format (instruction and output, messages, prompt and completion, chosen and rejected, "
    "source and target, or text), or say with a mapping which column holds what."
)


@dataclass(frozen=True)
class Found:
    """A format and the reason for it, as a sentence about every row."""

    format: str
    reason: str


class UnknownFormat(DataError):  # noqa: N818
    """The columns are those of no known format: a mapping can say what they hold."""


def find_format(row: Row) -> Found:
    """The format of a row.

    Raises:
        UnknownFormat: it has none that is known.
        DataError: it is no row, but holds the rows.
    """
    found = _preference(row) or _conversation(row) or _columns(row)
    if found is None:
        raise _unknown(row)
    return found


def _unknown(row: Row) -> DataError:
    for name, value in row.items():
        if (len(row) == 1 or name in _HOLDERS) and isinstance(value, list) and value and isinstance(value[0], dict):
            message = f"holds a list of rows under {name!r}, and is no row itself."
            return DataError(message, f"Save the list under {name!r} as the whole file.", field=name)
    columns = f"has the columns {named(list(row))}" if row else "has no columns"
    return UnknownFormat(f"{columns}, of which no known format is made.", UNKNOWN_FIX)


def named(columns: list[str]) -> str:
    """The first columns' names as a sentence has them."""
    return listed([repr(name) for name in columns[:_NAMED]] + (["more"] if len(columns) > _NAMED else []))


def listed(names: list[str]) -> str:
    """Names as a sentence has them: a, b and c."""
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)


def _every(names: str, more: str = "") -> str:
    return f"every row has the columns {names}{more}"


_PAIR = "preference"
_EXPLICIT = Found(_PAIR, _every("prompt, chosen and rejected"))
_SPOKEN = Found(_PAIR, _every("chosen and rejected", ", each a conversation that begins the same"))
_BEGINNING = Found(_PAIR, _every("chosen and rejected", ", two texts with the same beginning"))
_INSTRUCTED = Found(_PAIR, _every("instruction, chosen and rejected"))
_ANSWERS = {name: Found(_PAIR, _every(f"{name}, chosen and rejected")) for name in CONVERSATION_COLUMNS}
_LABELLED = Found("unpaired preference", _every("prompt, completion and label", " (true or false)"))
_LABELLED_TURNS = {
    name: Found("unpaired preference", _every(f"{name} and label", " (true or false)")) for name in CONVERSATION_COLUMNS
}
_FLAT = (
    (frozenset({"prompt", "completion"}), Found("prompt/completion", _every("prompt and completion"))),
    (frozenset({"instruction", "output"}), Found("alpaca", _every("instruction and output"))),
    (frozenset({"source", "target"}), Found("source/target", _every("source and target"))),
    (frozenset({"text", "label"}), Found("text/label", _every("text and label"))),
    (frozenset({"text"}), Found("text", "every row has the column text")),
)
_ALPACA_INPUT = Found("alpaca", _every("instruction, input and output"))


def _preference(row: Row) -> Found | None:
    if "chosen" not in row or "rejected" not in row:
        return None
    for name, found in _ANSWERS.items():
        if name in row:
            return found
    if "prompt" in row:
        return _EXPLICIT
    if "instruction" in row:
        return _INSTRUCTED
    return _SPOKEN if isinstance(from_json(row["chosen"]), list) else _BEGINNING


def _conversation(row: Row) -> Found | None:
    for name in CONVERSATION_COLUMNS:
        if name in row:
            turns = from_json(row[name])
            if isinstance(turns, list) or turns is None:
                return _LABELLED_TURNS[name] if _is_label(row.get("label")) else _turns(name, turns)
    return None


def _turns(name: str, turns: list[Any] | None) -> Found | None:
    first = turns[0] if turns else {}
    if isinstance(first, dict) and ("from" in first or "value" in first or (not first and name != "messages")):
        return _SHAREGPT[name]
    return _MESSAGES[name] if not first or (isinstance(first, dict) and "role" in first) else None


_SHAREGPT = {
    name: Found("sharegpt", f"every row has the column {name}, a list of turns with from and value")
    for name in CONVERSATION_COLUMNS
}
_MESSAGES = {
    name: Found("messages", f"every row has the column {name}, a list of turns with role and content")
    for name in CONVERSATION_COLUMNS
}


def _columns(row: Row) -> Found | None:
    for names, found in _FLAT:
        if names <= row.keys() and all(_is_flat(row[name], names) for name in names):
            if "label" in row and "prompt" in names and _is_label(row["label"]):
                return _LABELLED
            return _ALPACA_INPUT if found.format == "alpaca" and "input" in row else found
    return None


def _is_flat(value: Any, names: frozenset[str]) -> bool:
    """Whether a value may stand where a text is wanted; prompt and completion may be lists of messages too.

    A number may: that the text is a number is said of its row. An object or a list asks for a mapping.
    """
    if isinstance(value, str):
        return True
    if isinstance(value, list):
        return "prompt" in names and (not value or (isinstance(value[0], dict) and "role" in value[0]))
    return not isinstance(value, dict)


def _is_label(value: Any) -> bool:
    return value in (True, False) if isinstance(value, int) else str(value).strip().lower() in ("true", "false")
