"""Converts a model folder to a GGUF file for llama.cpp: `python -m training.results.gguf MODEL_FOLDER FILE.gguf [TYPE]`.

Prints its progress, and what there is to know of the file, as JSON objects.
"""

import json
import sys
from pathlib import Path

from training.ranks.stopping import die_with_parent
from training.results.gguf.convert import write
from training.results.progress import exit_status, printed
from training.run_folder.derived import GgufType


@exit_status
def main(folder: Path, target: Path, kind: GgufType = GgufType.TRAINED) -> None:
    """Converts a model."""
    for note in write(folder, target, kind, printed):
        print(json.dumps({"note": note}))


if __name__ == "__main__":
    die_with_parent()
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), *map(GgufType, sys.argv[3:])))
