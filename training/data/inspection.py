"""Reads a complete file and reports its format and all its problems, or shows its first rows as training examples. No torch.

`python -m training.data.inspection FILE [--name NAME] [--columns MAPPING]` prints the report as one JSON object, with
`--first COUNT` a JSON list of rows. The worker runs it for uploaded files, in a process with limits on memory and time.
"""

import argparse
import json
import sys
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from training.data.example import Example, Message, Row
from training.data.files.formats import file_format
from training.data.files.readers import read_records, read_rows, text_reason
from training.data.row_formats import MAPPED, UNKNOWN
from training.data.rows import reader
from training.data.survey import ERROR, Issue, Survey
from training.errors import DataError

_CHARACTERS = 1200  # of a part in a preview


@dataclass(frozen=True)
class Inspection:
    """The report on a file. `sample` has its first rows with long texts shortened, `counts` the number of rows by format.

    `trainable` is True if there are no errors, `mappable` if the only errors are unknown columns. `suggestion` is then a column
    mapping that fits the first rows, if a common one does. `unused` are the columns that training does not use.
    """

    file_format: str = ""
    format: str = UNKNOWN
    reason: str = ""
    rows: int = 0
    columns: list[str] = field(default_factory=list)
    sample: list[Row] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    empty_rows: int = 0
    problems: list[Issue] = field(default_factory=list)
    trainable: bool = False
    mappable: bool = False
    suggestion: str = ""
    unused: list[str] = field(default_factory=list)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Inspection":
        return cls(**values | {"problems": [Issue(**problem) for problem in values["problems"]]})

    def error(self) -> DataError | None:
        """The first error, as one to raise."""
        first = next((issue for issue in self.problems if issue.level == ERROR), None)
        if first is None:
            return None
        return DataError(first.message, first.fix, file=first.file, line=first.line, field=first.field)


def inspect(path: Path, name: str | None = None, columns: str | None = None, known: str | None = None) -> Inspection:
    """Reads every row of a file. `name` is its name in messages, `columns` a mapping, `known` its file format if known.

    Problems of the file are part of the report; none is raised.
    """
    name = name or path.name
    try:
        survey = Survey(name, columns)
        kind = known or file_format(path, name)
    except DataError as error:
        return Inspection(problems=[Issue.of(error, name)])
    try:
        for record in read_records(path, kind):
            survey.add(record)
    except DataError as error:
        survey.issues.add(ERROR, error, error.line, 1 if error.line else 0)
    except MemoryError:
        fix = "Save it as JSONL, which is read row by row."
        survey.issues.add(ERROR, DataError("needs more memory than the limit.", fix), None, 0)
    survey.conclude()
    return _report(survey, path, kind, mapped=columns is not None)


def _report(survey: Survey, path: Path, kind: str, *, mapped: bool) -> Inspection:
    plain_text = kind.startswith("txt") and not mapped and not survey.issues.errors
    return Inspection(
        file_format=kind,
        format=MAPPED if mapped else survey.format,
        reason=text_reason(path) if plain_text else survey.reason(),
        rows=survey.rows,
        columns=list(survey.columns.names),
        sample=survey.sample,
        counts=survey.counted(),
        empty_rows=survey.empty,
        problems=survey.issues.listed(),
        trainable=not survey.issues.errors,
        mappable=survey.mappable and not mapped,
        suggestion=survey.suggestion(),
        unused=survey.unused(),
    )


def preview(path: Path, count: int, columns: str | None = None) -> list[dict[str, Any]]:
    """The `number` (from 1) of each of the first rows, and its `parts`, or its `problem` with `field` and `fix`.

    A part is [label, text, True if it has loss]. If the file cannot be read, or `columns` is not a mapping, it is the problem of a
    single row.
    """
    rows: list[dict[str, Any]] = []
    try:
        read = reader(columns)
        for number, row in enumerate(islice(read_rows(path, file_format(path, path.name)), count), 1):
            try:
                shown = _parts(read(row)[1])
            except DataError as error:
                rows.append(_unread(error, number))
            else:
                rows.append(
                    {"number": number, "parts": [(label, text[:_CHARACTERS], loss) for label, text, loss in shown]}
                )
    except DataError as error:
        return [_unread(error, error.line or 1)]
    return rows


def _unread(error: DataError, number: int) -> dict[str, Any]:
    return {"number": number, "problem": error.message, "field": error.field, "fix": error.fix}


def _parts(example: Example) -> list[tuple[str, str, bool]]:
    if example.messages is not None:
        listed = [
            (str(message["role"]), _content(message), example.answered and message["role"] == "assistant")
            for message in example.messages
        ]
    else:
        listed = [("prompt", example.prompt, False)] if example.prompt else []
        listed += [("answer" if example.prompt else "text", example.answer, True)] if example.answered else []
    listed += [("tools", json.dumps(example.tools, ensure_ascii=False), False)] if example.tools else []
    if example.rejected is not None:
        rejected = example.rejected
        text = rejected if isinstance(rejected, str) else "\n".join(map(_content, rejected))
        listed.append(("rejected", text, False))
    return listed + ([("wanted", "yes" if example.label else "no", False)] if example.label is not None else [])


def _content(message: Message) -> str:
    calls = message.get("tool_calls")
    return str(message.get("content") or "") + (json.dumps(calls, ensure_ascii=False) if calls else "")


def main() -> None:
    parser = argparse.ArgumentParser(description="Check a data set and print a report as JSON.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--name", help="the name to use in messages")
    parser.add_argument("--columns", help="column mapping, such as prompt=question, completion=answers.0.text")
    parser.add_argument("--file-format", help="file format, if the name does not have its ending")
    parser.add_argument("--first", type=int, metavar="COUNT", help="print the first rows as training examples instead")
    given = parser.parse_args()
    if given.first:
        printed: Any = preview(given.file, given.first, given.columns)
    else:
        printed = asdict(inspect(given.file, given.name, given.columns, given.file_format))
    sys.stdout.write(json.dumps(printed) + "\n")


if __name__ == "__main__":
    main()
