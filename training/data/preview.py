"""The first rows of a file as training examples, to preview a column mapping. No torch.

`python -m training.data.preview FILE COUNT [--columns MAPPING]` prints a JSON list. The worker runs it in a process with limits on
memory and time.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from training.data.example import Example, Message
from training.data.files.formats import file_format
from training.data.files.readers import read_rows
from training.data.rows import reader
from training.errors import DataError

CHARACTERS = 1200


def preview(path: Path, count: int, columns: str | None = None) -> Iterator[dict[str, Any]]:
    """Yields the `number` (from 1) of each of the first rows, and its `parts`, or its `problem` with `field` and `fix`.

    A part is [label, text, True if it has loss].

    Raises:
        DataError: the file cannot be read, or `columns` is not a mapping.
    """
    read = reader(columns)
    for number, row in enumerate(islice(read_rows(path, file_format(path, path.name)), count), 1):
        try:
            _, example = read(row)
        except DataError as error:
            yield {"number": number, "problem": error.message, "field": error.field, "fix": error.fix}
        else:
            yield {
                "number": number,
                "parts": [[label, text[:CHARACTERS], has_loss] for label, text, has_loss in parts(example)],
            }


def parts(example: Example) -> list[tuple[str, str, bool]]:
    """The parts of an example in order, as (label, text, has loss)."""
    if example.messages is not None:
        listed = [
            (str(message["role"]), _content(message), message["role"] == "assistant") for message in example.messages
        ]
    else:
        listed = [("prompt", example.prompt, False)] if example.prompt else []
        listed += [("answer" if example.prompt else "text", example.answer, True)]
    listed += [("tools", json.dumps(example.tools, ensure_ascii=False), False)] if example.tools else []
    if example.rejected is not None:
        rejected = example.rejected
        listed.append(
            ("rejected", rejected if isinstance(rejected, str) else "\n".join(map(_content, rejected)), False)
        )
    return listed + ([("wanted", "yes" if example.label else "no", False)] if example.label is not None else [])


def _content(message: Message) -> str:
    calls = message.get("tool_calls")
    return str(message.get("content") or "") + (json.dumps(calls, ensure_ascii=False) if calls else "")


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the first rows of a data set as training examples, as JSON.")
    parser.add_argument("file", type=Path)
    parser.add_argument("count", type=int)
    parser.add_argument("--columns")
    arguments = parser.parse_args()
    try:
        records: Any = list(preview(arguments.file, arguments.count, arguments.columns))
    except DataError as error:
        records = [{"number": error.line or 1, "problem": error.message, "field": error.field, "fix": error.fix}]
    sys.stdout.write(json.dumps(records) + "\n")


if __name__ == "__main__":
    main()
