"""Finds the near duplicates in several token stores together: `python -m training.tokens.make_groups FOLDER...`.

The groups are kept in a file of the first store (groups.py), and the number of compared rows in its progress file meanwhile.
"""

import sys
from pathlib import Path

from training.tokens.groups import near_groups
from training.tokens.make_store import FileProgress
from training.tokens.store import PROGRESS, in_use, joined, making_folder, open_store


def main(folders: list[Path]) -> None:
    for folder in folders:
        in_use(folder)
    store = joined([open_store(folder) for folder in folders])
    written = FileProgress(making_folder(folders[0]) / PROGRESS, store.rows)
    near_groups(store, lambda done, _total: written(done))


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
