"""Logs with the causes that count as right for them."""

import json
from dataclasses import dataclass
from pathlib import Path

from worker.diagnosis.causes import CAUSES

TESTS = Path(__file__).parents[2] / "tests" / "logs"


@dataclass(frozen=True)
class Judged:
    """A log: `accept` are the causes that count as right, the expected one first; `healthy` if it shows no failure."""

    name: str
    text: str
    accept: tuple[str, ...]
    healthy: bool = False


def of_tests() -> list[Judged]:
    """The logs in tests/logs, whose names begin with their cause."""
    paths = sorted(TESTS.rglob("*.log"))
    return [Judged(path.stem, path.read_text(encoding="utf-8"), (path.stem.partition(".")[0],)) for path in paths]


def of_folder(folder: Path) -> list[Judged]:
    """The logs of a folder with an index.json: objects with `file`, `accept` and, for logs without a failure, `kind` "healthy".

    Only those accepted causes count that Lathe has; a first line that names the source of a log is left out.

    Raises:
        OSError: the index or a log cannot be read.
    """
    known = {cause.name for cause in CAUSES} | {"unknown", "no_failure"}
    return [
        Judged(
            row["file"],
            _without_source((folder / row["file"]).read_text(encoding="utf-8")),
            tuple(name for name in row["accept"] if name in known) or ("unknown",),
            row.get("kind") == "healthy",
        )
        for row in json.loads((folder / "index.json").read_text(encoding="utf-8"))
    ]


def _without_source(text: str) -> str:
    return text.partition("\n")[2] if text.startswith("# ") else text
