"""The first rows of a file as the trainer would take them, for whoever is choosing what its columns mean. No torch.

`python -m training.preview FILE COUNT [--columns MAPPING]` prints a JSON list, so that the file can be read in a process of
its own with limits on memory and time.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from training.example import Example, Message
from training.failure import DataError
from training.files import file_format
from training.readers import read_rows
from training.rows import reader

CHARACTERS = 1200


def preview(path: Path, count: int, columns: str | None = None) -> Iterator[dict[str, Any]]:
    """For each of the first rows its `number` from 1, and its `parts` or the `problem` with its `field` and `fix`.

    A part is [what it is, its text, whether it is learned].

    Raises:
        DataError: the file cannot be read, or `columns` is no mapping.
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
                "parts": [[label, said[:CHARACTERS], learned] for label, said, learned in parts(example)],
            }


def parts(example: Example) -> list[tuple[str, str, bool]]:
    """What a row is made of, in its order; the answers are learned."""
    if example.messages is not None:
        found = [(str(message["role"]), _said(message), message["role"] == "assistant") for message in example.messages]
    else:
        found = [("prompt", example.prompt, False)] if example.prompt else []
        found += [("answer" if example.prompt else "text", example.answer, True)]
    found += [("tools", json.dumps(example.tools, ensure_ascii=False), False)] if example.tools else []
    if example.rejected is not None:
        worse = example.rejected
        found.append(("rejected", worse if isinstance(worse, str) else "\n".join(map(_said, worse)), False))
    return found + ([("wanted", "yes" if example.label else "no", False)] if example.label is not None else [])


def _said(message: Message) -> str:
    calls = message.get("tool_calls")
    return str(message.get("content") or "") + (json.dumps(calls, ensure_ascii=False) if calls else "")


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Print the first rows of a data set as a model would get them, as JSON."
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("count", type=int)
    parser.add_argument("--columns")
    arguments = parser.parse_args()
    try:
        finding: Any = list(preview(arguments.file, arguments.count, arguments.columns))
    except DataError as error:
        finding = [{"number": error.line or 1, "problem": error.message, "field": error.field, "fix": error.fix}]
    sys.stdout.write(json.dumps(finding) + "\n")


if __name__ == "__main__":
    main()
