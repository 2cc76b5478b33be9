"""`python -m training.data.files.join FILE NAME [FILE NAME ...]` prints the rows of several checked files as one JSONL. No torch.

Like the inspection it runs with limits and writes no file; the worker stores its output.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from training.data.files.formats import file_format
from training.data.files.readers import read_rows
from training.data.survey import Issue
from training.errors import DataError

REFUSED = 3
"""The exit status if a file cannot be read; stderr then has the problem as JSON."""


def main(arguments: list[str]) -> int:
    for file, name in zip(arguments[::2], arguments[1::2], strict=True):
        path = Path(file)
        try:
            for row in read_rows(path, file_format(path, name)):
                # Values without a JSON type (dates, decimals, bytes) become text.
                sys.stdout.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
        except DataError as error:
            sys.stderr.write(json.dumps(asdict(Issue.of(error, name))))
            return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
