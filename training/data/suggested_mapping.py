"""Suggests a column mapping for rows of unknown format: common pairs of names, each tried on the rows before it is named."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from training.data.conversations import from_json
from training.data.example import EmptyRow, Row
from training.data.mapping import apply, format_of, write_mapping
from training.data.to_examples import to_example
from training.data.usual_columns import LANGUAGE, MORE, NAMES
from training.errors import DataError

_NAMES: dict[str, list[Any]] = NAMES["suggested"]
_ASKED, _ANSWERED, _CHOSEN, _SOURCES = (_NAMES[name] for name in ("asked", "answered", "chosen", "sources"))
_CHOICES: list[str] = NAMES["choices"]
_INSTRUCTED = {"prompt": "instruction", "completion": "output"}


def suggest(rows: Sequence[Row]) -> str | None:
    """A column mapping with which every one of the rows is an example; None if no common one fits.

    Names are compared in any case. Columns with an input, a system prompt, earlier turns or tools are added if they fit.
    """
    if not rows:
        return None
    if have_choices(rows):
        return None
    names = _by_lower_case(rows)
    for candidate in (*_candidates(names), *_language_pairs(rows[0])):
        mapping = {role: _named(path, names) for role, path in candidate.items()}
        if fits(mapping, rows, set(mapping)):
            return write_mapping(_extended(mapping, rows, names))
    return None


def have_choices(rows: Sequence[Row]) -> bool:
    """True if rows have the choices of a question, which a mapping would drop."""
    names = _by_lower_case(rows)
    return any(
        isinstance(from_json(row.get(names.get(choices, ""))), list | dict) for row in rows for choices in _CHOICES
    )


def _by_lower_case(rows: Sequence[Row]) -> dict[str, str]:
    return {name.lower(): name for row in rows for name in reversed(row)}


def pair_beside_text(row: Row) -> str | None:
    """The mapping of a row with a column `text` in which other columns, or it and another one, form a pair; None if none do."""
    if len(row) == 1 or not may_pair(frozenset(row)):
        return None
    mapping = suggest([row])
    return mapping if mapping and not mapping.startswith(("text=", "messages=")) else None


@lru_cache(maxsize=1024)
def may_pair(names: frozenset[str]) -> bool:
    """True if the columns include the names of a common pair."""
    lowered = {name.lower() for name in names}
    pairs = [(asked, answered.partition(".")[0]) for asked in _ASKED for answered in _ANSWERED]
    pairs += [*_CHOSEN, *_SOURCES, *(("text", answer) for answer in _NAMES["answers_to_text"])]
    return any(one != other and {one, other} <= lowered for one, other in pairs)


def _candidates(names: Collection[str]) -> Iterator[dict[str, str]]:
    """The mappings to try, in order, whose columns occur in the rows."""
    pairs = [(asked, answered) for asked in _ASKED for answered in _ANSWERED if asked != answered]
    candidates = [
        *({"messages": column} for column in _NAMES["chats"]),
        *({"prompt": asked, "chosen": one, "rejected": other} for asked in _ASKED for one, other in _CHOSEN),
        {"chosen": "chosen_messages", "rejected": "rejected_messages"},
        {"instruction": "instruction", "input": "instances.0.input", "output": "instances.0.output"},
        *({"prompt": asked, "completion": answered} for asked, answered in pairs),
        *({"source": source, "target": target} for source, target in _SOURCES),
        *({"prompt": "text", "completion": answered} for answered in _NAMES["answers_to_text"]),
        *({"text": text, "label": label} for text, label in _NAMES["classes"]),
        *({"text": column} for column in _NAMES["texts"]),
    ]
    for mapping in candidates:
        if all(path.partition(".")[0] in names for path in mapping.values()):
            yield mapping


def _language_pairs(row: Row) -> Iterator[dict[str, str]]:
    """A translation: two columns with texts, named by the codes of their languages."""
    codes = [name for name, text in row.items() if isinstance(text, str) and LANGUAGE.fullmatch(name)]
    if len(codes) == 2:
        yield {"source": codes[0], "target": codes[1]}


def _named(path: str, names: Mapping[str, str]) -> str:
    column, dot, rest = path.partition(".")
    return names.get(column, column) + dot + rest


def _extended(mapping: dict[str, str], rows: Sequence[Row], names: Mapping[str, str]) -> dict[str, str]:
    """The mapping with the optional columns that the rows have and that it does not use."""
    needed = {_INSTRUCTED.get(name, name) for name in mapping} | set(mapping)
    for role, usual in (MORE | {"tools": ("tools",)}).items():
        column = next((names[name] for name in usual if name in names and names[name] not in mapping.values()), None)
        if column is None:
            continue
        more = {**mapping, role: column}
        if role in ("input", "history") and "prompt" in mapping:  # they belong to an instruction
            more = {_INSTRUCTED.get(name, name): path for name, path in more.items()}
        if role == "input" and "chosen" not in mapping:
            more = {name: more[name] for name in ("instruction", "input", "output", *more) if name in more}
        if fits(more, rows, needed & set(more)):
            mapping = more
    return mapping


def fits(mapping: dict[str, str], rows: Sequence[Row], needed: set[str]) -> bool:
    """True if the roles form a format, every row has the needed ones, and each row is an example or empty."""
    try:
        row_format = format_of(mapping)
        for row in rows:
            mapped = apply(mapping, row)
            if not needed <= mapped.keys():
                return False
            try:
                to_example(mapped, row_format)
            except EmptyRow:
                continue
    except DataError:
        return False
    return True
