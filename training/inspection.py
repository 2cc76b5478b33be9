"""Reading a whole file to say what it is and everything that is wrong with it. No torch.

`python -m training.inspection FILE [--name NAME] [--columns MAPPING]` prints the finding as one JSON object, so that a file
somebody uploaded can be read in a process of its own with limits on memory and time.
"""

import argparse
import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from training.example import Row
from training.failure import DataError
from training.files import file_format
from training.formats import MAPPED, UNKNOWN
from training.issues import ERROR, Issue
from training.readers import read_records, text_reason
from training.survey import Survey


@dataclass(frozen=True)
class Inspection:
    """What a file holds. `sample` are its first rows with long texts cut short, `counts` the rows of each format.

    `trainable`: no error stands against training. `mappable`: all that does is that no known format has these columns.
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
    """Reads every row; `name` is the file's name for people, `columns` a mapping, `known` its file format where that is known.

    Raises nothing over what the file holds.
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
        fix = "Save it as JSONL, which is read a row at a time."
        survey.issues.add(ERROR, DataError("needs more memory than allowed.", fix), None, 0)
    survey.conclude()
    return _finding(survey, path, kind, mapped=columns is not None)


def _finding(survey: Survey, path: Path, kind: str, *, mapped: bool) -> Inspection:
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
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Check that a data set can train; print the finding as JSON.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--name", help="the name to use in messages")
    parser.add_argument("--columns", help="which columns hold what: prompt=question, completion=answers.0.text")
    parser.add_argument("--file-format", help="its format, where that is known and the name says nothing of it")
    arguments = parser.parse_args()
    found = inspect(arguments.file, arguments.name, arguments.columns, arguments.file_format)
    sys.stdout.write(json.dumps(asdict(found)) + "\n")


if __name__ == "__main__":
    main()
