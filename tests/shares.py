"""Which test files each of several processes runs: files in the order of their paths, cut into shares of equal duration.

Neighbors need the same libraries, servers and processes, which the process that runs them starts once. Each process collects
its own files only. `durations.json` holds seconds per file, as `make test-all` measured them.
"""

import json
from functools import cache
from pathlib import Path

import pytest

DURATIONS = Path(__file__).with_name("durations.json")
NEW_FILE_SECONDS = 2.0
EACH_FILE_SECONDS = 0.1  # to import it


@cache
def files(config: pytest.Config, index: int, count: int) -> frozenset[Path]:
    """The files of process `index` of `count`, from those that the command line names."""
    listed = sorted({file for argument in config.args for file in _test_files(config.invocation_params.dir, argument)})
    measured: dict[str, float] = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
    seconds = [
        EACH_FILE_SECONDS + measured.get(str(file.relative_to(config.rootpath)), NEW_FILE_SECONDS) for file in listed
    ]
    middles = [sum(seconds[:number]) + own / 2 for number, own in enumerate(seconds)]
    return frozenset(
        file for file, middle in zip(listed, middles, strict=True) if int(count * middle / sum(seconds)) == index
    )


def _test_files(folder: Path, argument: str) -> list[Path]:
    path = (folder / argument.partition("::")[0]).resolve()
    return [path] if path.is_file() else list(path.rglob("test_*.py"))
