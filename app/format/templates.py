"""Rendered rows and their faults as text for people."""

from app.format import numbers
from training.printable import printable
from training.template_check.findings import Finding, Report, ShownRow, ShownToken
from worker.runs.rows_check import CheckedSet

_GREEN, _BOLD, _DIM, _STRUCK, _PLAIN = "\x1b[32m", "\x1b[1m", "\x1b[2m", "\x1b[9m", "\x1b[0m"


def page(checked: list[CheckedSet], *, colors: bool = False) -> str:
    """The faults of each data set, then its rendered rows. Without `colors` tokens with loss are in [[ ]]."""
    parts: list[str] = []
    for one in checked:
        parts += [
            printable(heading(one)),
            *(f"  {printable(_finding(finding))}" for finding in one.report.findings),
            "",
        ]
        parts += [f"{_row(row, colors=colors)}\n" for row in one.report.rows]
    marks = f"{_GREEN}with loss{_PLAIN}, {_DIM}without loss{_PLAIN}" if colors else "[[with loss]]"
    return "\n".join([*parts, f"Tokens: {marks}."])


def heading(one: CheckedSet) -> str:
    """The number of checked rows and of faults, in a line."""
    return f"{one.name}: {summary(one.report)}"


def summary(report: Report) -> str:
    """What the check found, in a sentence."""
    warnings = len(report.findings) - len(report.errors)
    found = [
        numbers.plural(count, noun) for count, noun in ((len(report.errors), "error"), (warnings, "warning")) if count
    ]
    checked = f"{numbers.plural(report.checked, 'row')} checked"
    if report.rendered > report.checked:
        which = "all" if report.complete else "the first"
        checked += f" token by token and {which} {numbers.count(report.rendered)} rendered"
    rest = "" if report.complete else " The run checks the others before it trains."
    return f"{checked}, {' and '.join(found) or 'no faults found'}.{rest}"


def _finding(finding: Finding) -> str:
    return f"{finding.severity.capitalize()} {finding.fault.value}: {finding.sentence} {finding.fix}"


def _row(row: ShownRow, *, colors: bool) -> str:
    text = "".join(_colored(token) for token in row.tokens) if colors else _marked(row)
    more = row.length - len(row.tokens)
    rest = f"\n... {numbers.plural(more, 'token')} more" if more else ""
    trained = numbers.plural(sum(token.trained and not token.cut for token in row.tokens), "token")
    return f"Row {row.number:,}: {numbers.plural(row.length, 'token')}, {trained} with loss\n{text}{rest}"


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
