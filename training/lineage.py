"""Where a run comes from, as its supervisor knows it: written beside the configuration, told in the result's card."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

LINEAGE_FILE = "lineage.json"


@dataclass(frozen=True)
class DataSource:
    """A file that a run reads: its uploader's name for it, and the SHA-256 of its bytes."""

    role: str
    name: str
    sha256: str


@dataclass(frozen=True)
class Lineage:
    """`parent` is the run that this one was cloned from; `attempts` more than 1 where it was resumed."""

    run: str = ""
    name: str = ""
    parent: str = ""
    attempts: int = 1
    data: list[DataSource] = field(default_factory=list)

    def write(self, run_dir: Path) -> None:
        """Writes it, whole or not at all.

        Raises:
            OSError: the disk is full.
        """
        part = run_dir / f"{LINEAGE_FILE}.part"
        part.write_text(json.dumps(asdict(self), indent=2), encoding="utf-8")
        part.replace(run_dir / LINEAGE_FILE)

    @classmethod
    def read(cls, run_dir: Path) -> "Lineage":
        """What was written; nothing is known of a run that nobody supervised."""
        try:
            values = json.loads((run_dir / LINEAGE_FILE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls()
        return cls(**(values | {"data": [DataSource(**source) for source in values["data"]]}))
