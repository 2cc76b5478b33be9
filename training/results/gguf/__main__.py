"""Converts a model folder to a GGUF file for llama.cpp: `python -m training.results.gguf MODEL_FOLDER FILE.gguf [TYPE]`.

Prints its progress, and what there is to know of the file, a line each.
"""

import sys
from pathlib import Path

from training.errors import UserError
from training.ranks.stopping import die_with_parent
from training.results.gguf.convert import write
from training.results.progress import printed
from training.run_folder.gguf_types import GgufType


def main(folder: Path, target: Path, kind: GgufType = GgufType.TRAINED) -> int:
    """Converts a model; prints errors to standard error. Returns the exit status."""
    try:
        for note in write(folder, target, kind, printed):
            print(note)
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    die_with_parent()
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), *map(GgufType, sys.argv[3:])))
