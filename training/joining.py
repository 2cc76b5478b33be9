"""`python -m training.joining FILE NAME [FILE NAME ...]` prints the rows of several checked files as one JSONL. No torch.

It runs with limits, as the inspection does, and writes no file: what reads its output decides what is kept.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from training.failure import DataError
from training.files import file_format
from training.issues import Issue
from training.readers import read_rows

REFUSED = 3
"""The exit status where a file cannot be read; what is wrong with it is on stderr as JSON."""


def main(arguments: list[str]) -> int:
    for file, name in zip(arguments[::2], arguments[1::2], strict=True):
        path = Path(file)
        try:
            for row in read_rows(path, file_format(path, name)):
                # What JSON has no form for (dates, decimals, bytes) is of no use to a text model; its text is kept.
                sys.stdout.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
        except DataError as error:
            sys.stderr.write(json.dumps(asdict(Issue.of(error, name))))
            return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
