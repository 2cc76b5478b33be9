"""`python -m training.joining FILE NAME [FILE NAME ...]` prints the rows of several checked files as one JSONL. No torch.

It runs with limits, as the inspection does, and writes no file: what reads its output decides what is kept.
"""

import json
import sys
from pathlib import Path

from training.files import file_format
from training.readers import read_rows


def main(arguments: list[str]) -> None:
    for file, name in zip(arguments[::2], arguments[1::2], strict=True):
        path = Path(file)
        for row in read_rows(path, file_format(path, name)):
            # What JSON has no form for (dates, decimals, bytes) is of no use to a text model; its text is kept.
            sys.stdout.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
