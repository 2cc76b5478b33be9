"""Values of a data set's rows and their tokens as text. Pure."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from app.format import numbers
from app.texts import _
from training.redaction import printable
from training.template_check.findings import Finding, ShownRow, ShownToken, TemplateReport
from worker.runs.rows_check import CheckedSet

CELL_CHARACTERS, TURN_CHARACTERS, TURNS = 400, 200, 4
"""How much of a value is shown in a cell: of a text, and of how many turns of a conversation."""

_CELL_LINES = 6
CONTINUED = "⋯"
"""Shown for a token that holds only the first bytes of a character."""

_VISIBLE = str.maketrans({" ": "·", "\t": "→\t", "\n": "⏎\n", "\r": "␍", "\u00a0": "⍽"})


def text_of(value: Any, indent: int | None = None) -> str:
    """A text as it is, any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=indent)


def is_conversation(value: Any) -> bool:
    """True for a list of messages."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(turn, dict) and any(key in turn for key in ("role", "from")) for turn in value)
    )


def turns(value: list[Mapping[str, Any]]) -> list[tuple[Any, str]]:
    """Who says what in each message of a conversation, with calls of tools as JSON."""
    return [(turn.get("role", turn.get("from")), _content(turn)) for turn in value]


def any_long(values: Iterable[Any]) -> bool:
    """True if the cells of a row show only a part of some value."""
    return any(map(_is_long, values))


def token_signs(tokens: Iterable[Any]) -> set[str]:
    """Which of the signs special, cut and continued a legend of these tokens explains."""
    signs: set[str] = set()
    for token in tokens:
        if token.special:
            signs.add("special")
        if token.cut:
            signs.add("cut")
        if not token.text:
            signs.add("continued")
    return signs


def visible(text: str) -> str:
    """A token's text with visible white space; other unprintable characters as their code point."""
    shown = text.translate(_VISIBLE)
    return (
        "".join(letter if letter.isprintable() or letter in "\n\t" else f"[U+{ord(letter):04X}]" for letter in shown)
        or CONTINUED
    )


def _is_long(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) > CELL_CHARACTERS or value.count("\n") > _CELL_LINES
    if is_conversation(value):
        return len(value) > TURNS or any(len(said) > TURN_CHARACTERS for _, said in turns(value))
    return isinstance(value, (dict, list)) and len(text_of(value)) > CELL_CHARACTERS


def _content(turn: Mapping[str, Any]) -> str:
    content = turn.get("content", turn.get("value"))
    calls = turn.get("tool_calls")
    return ("" if content is None else text_of(content)) + (f" {text_of(calls)}" if calls else "")


_GREEN, _BOLD, _DIM, _STRUCK, _PLAIN = "\x1b[32m", "\x1b[1m", "\x1b[2m", "\x1b[9m", "\x1b[0m"


def page(checked: list[CheckedSet], *, colors: bool = False) -> str:
    """The faults of each data set, then its rendered rows. Without `colors` tokens with loss are in [[ ]]."""
    parts: list[str] = []
    for data_set in checked:
        parts += [
            printable(heading(data_set)),
            *(f"  {printable(_finding(finding))}" for finding in data_set.report.findings),
            "",
        ]
        parts += [f"{_row(row, colors=colors)}\n" for row in data_set.report.rows]
    marks = f"{_GREEN}with loss{_PLAIN}, {_DIM}without loss{_PLAIN}" if colors else "[[with loss]]"
    return "\n".join([*parts, f"Tokens: {marks}."])


def heading(data_set: CheckedSet) -> str:
    """The number of checked rows and of faults, in a line."""
    return f"{data_set.name}: {summary(data_set.report)}"


def summary(report: TemplateReport) -> str:
    """What the check found, in a sentence."""
    warnings = len(report.findings) - len(report.errors)
    found = [numbers.plural(len(report.errors), "error", "errors")] if report.errors else []
    found += [numbers.plural(warnings, "warning", "warnings")] if warnings else []
    sentence = _("{rows} checked, {faults}.")
    if report.rendered > report.checked and report.complete:
        sentence = _("{rows} checked token by token and all {rendered} rendered, {faults}.")
    elif report.rendered > report.checked:
        sentence = _("{rows} checked token by token and the first {rendered} rendered, {faults}.")
    rows, rendered = numbers.plural(report.checked, "row", "rows"), numbers.count(report.rendered)
    said = sentence.format(rows=rows, rendered=rendered, faults=_(" and ").join(found) or _("no faults found"))
    return said if report.complete else " ".join([said, _("The run checks the others before it trains.")])


def _finding(finding: Finding) -> str:
    return f"{finding.severity.capitalize()} {finding.fault.value}: {finding.sentence} {finding.fix}"


def _row(row: ShownRow, *, colors: bool) -> str:
    text = "".join(_colored(token) for token in row.tokens) if colors else _marked(row)
    more = row.length - len(row.tokens)
    rest = f"\n... {numbers.plural(more, 'token', 'tokens')} more" if more else ""
    trained = numbers.plural(sum(token.trained and not token.cut for token in row.tokens), "token", "tokens")
    return f"Row {row.number:,}: {numbers.plural(row.length, 'token', 'tokens')}, {trained} with loss\n{text}{rest}"


def _colored(token: ShownToken) -> str:
    style = (_GREEN if token.trained else _DIM) + (_BOLD if token.special else "") + (_STRUCK if token.cut else "")
    return f"{style}{printable(token.text)}{_PLAIN}"


def _marked(row: ShownRow) -> str:
    """The text with [[ ]] around runs of tokens with loss; it ends at the maximum length."""
    parts: list[str] = []
    inside = False
    for token in row.tokens:
        if token.cut:
            parts.append("]]" if inside else "")
            return "".join([*parts, " ... truncated"])
        if token.trained is not inside:
            parts.append("[[" if token.trained else "]]")
            inside = token.trained
        parts.append(printable(token.text))
    return "".join([*parts, "]]" if inside else ""])
