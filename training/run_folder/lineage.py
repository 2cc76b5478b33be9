"""The parent run, attempts and data of a run: written by the supervisor, read for the model card."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from training.run_folder.paths import LINEAGE_FILE
from training.whole_file import write_whole


@dataclass(frozen=True)
class DataSource:
    """A data file of a run: its role, its name at upload, and the SHA-256 of its bytes."""

    role: str
    name: str
    sha256: str


@dataclass(frozen=True)
class Lineage:
    """`parent` is the run from which this one was cloned; `attempts` is more than 1 if it was resumed."""

    run: str = ""
    name: str = ""
    parent: str = ""
    attempts: int = 1
    data: list[DataSource] = field(default_factory=list)

    def write(self, run_dir: Path) -> None:
        """Writes the file atomically.

        Raises:
            OSError: the disk is full.
        """
        write_whole(run_dir / LINEAGE_FILE, json.dumps(asdict(self), indent=2))

    @classmethod
    def read(cls, run_dir: Path) -> "Lineage":
        """The lineage in the run's folder; empty for a run without a supervisor."""
        try:
            values = json.loads((run_dir / LINEAGE_FILE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls()
        return cls(**(values | {"data": [DataSource(**source) for source in values["data"]]}))
