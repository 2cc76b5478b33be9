"""A comparison as Markdown, as CSV and as plain text. Pure."""

import csv
import io
from collections.abc import Sequence

from app.documents.comparison.document import Comparison
from app.documents.comparison.paired import Against
from app.documents.comparison.result_lines import Line
from app.format import numbers
from app.format.evaluation_text import comparisons, differing, label
from app.format.numbers import csv_cell
from app.format.run_text import method
from training.redaction import markdown_text, one_line
from training.scoring.paired import in_words
from training.units import NONE


def markdown(comparison: Comparison) -> str:
    """A table with a row for each run, the best values in bold, then one with a row for each differing setting."""
    lines = [line for line in comparison.results if not line.minor]
    heads = ["Run", "Status", "Method", *(line.label for line in lines)]
    rows = [
        [
            markdown_text(run.name),
            run.status.value,
            method(run.settings),
            *(_result(line, place) for line in lines),
        ]
        for place, run in enumerate(comparison.runs)
    ]
    tables = [_table(heads, rows, left=3)]
    if different := [*comparison.settings, *comparison.circumstances]:
        names = [markdown_text(run.name) for run in comparison.runs]
        rows = [[markdown_text(text) for text in (line.label, *line.texts)] for line in different]
        tables.append(_table(["Setting", *names], rows, left=1))
    if comparison.against:
        rows = [[markdown_text(text) for text in row] for row in against_rows(comparison)]
        tables.append(
            _table(["Held-out answers", "Score", f"Against {markdown_text(comparison.runs[0].name)}"], rows, left=3)
        )
    return "\n\n".join(tables) + "\n"


def against_rows(comparison: Comparison) -> list[tuple[str, str, str]]:
    """(run, score, what it shows) of each run against the first one, by the answers to the same held-out rows."""
    names = {run.id: run.name for run in comparison.runs}
    return [
        (names[found.run_id], label(name), in_words(shown))
        for found in comparison.against
        for name, shown in found.scores.items()
    ] + [(names[found.run_id], NONE, text) for found in comparison.against for text in reasons(found)]


def reasons(found: Against) -> list[str]:
    """Why some or all scores are not compared."""
    return [*([found.reason] if found.reason else []), *differing([one.model_dump() for one in found.differs])]


def as_csv(comparison: Comparison) -> str:
    """A row for each run: plain numbers in bytes, seconds and percent, then the settings under their names in files."""
    settings = [line for line in comparison.settings if line.key != "method"]  # a column of its own
    lines = [*comparison.results, *settings, *comparison.circumstances]
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow(["id", "name", "status", "method", *(line.key for line in lines)])
    for place, run in enumerate(comparison.runs):
        described = [run.id, run.name, run.status.value, method(run.settings)]
        writer.writerow([csv_cell(value) for value in (*described, *(line.values[place] for line in lines))])
    return output.getvalue()


def plain(comparison: Comparison) -> str:
    """Columns for a terminal: a row for each result and each differing setting, a column for each run."""
    heads = ["", *(f"{numbers.shorten(one_line(run.name), 32)} ({run.id})" for run in comparison.runs)]
    rows = [
        heads,
        ["Status", *(run.status.value for run in comparison.runs)],
        ["Method", *(method(run.settings) for run in comparison.runs)],
        *([line.label, *line.texts] for line in comparison.results),
    ]
    if comparison.settings:
        rows += [[""] * len(heads), *([line.key, *map(one_line, line.texts)] for line in comparison.settings)]
    if comparison.circumstances:
        rows += [[""] * len(heads), *([line.label, *map(one_line, line.texts)] for line in comparison.circumstances)]
    shown = numbers.table(rows, right=frozenset(range(1, len(heads))))
    if not comparison.against:
        return shown
    first = f"Held-out answers against {one_line(comparison.runs[0].name)}:"
    compared = numbers.table([[one_line(text) for text in row] for row in against_rows(comparison)])
    counted = comparisons(len(comparison.against))
    return "\n".join([shown, "", first, compared, *([counted] if counted else [])])


def _result(line: Line, place: int) -> str:
    text = line.texts[place]
    return f"**{text}**" if place in line.best else text


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, left: int) -> str:
    rule = ["---"] * left + ["---:"] * (len(heads) - left)
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, rule, *rows))
