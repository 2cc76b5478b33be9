"""Runs one part of benchmarks/gpu/command.py: `python -m benchmarks.gpu.bench PART JOB.json`.

It writes the findings to a file after each one, so that an aborted part keeps its measurements.
"""

import json
import math
import sys
import time
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    """The job of a part: `device` is cuda or cpu, `small` selects sizes for a CPU, `seconds` is its time limit."""

    home: str
    file: str
    device: str
    small: bool
    seconds: float

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


class Bench:
    """The findings of a part: checks, tables, and what it skipped with the reason."""

    def __init__(self, job: Job) -> None:
        self.home, self.device, self.small = Path(job.home), job.device, job.small
        self._file, self._ends = Path(job.file), time.monotonic() + job.seconds
        self.found: dict[str, Any] = {"status": "running", "checks": [], "tables": {}, "skipped": [], "notes": []}
        self.save()

    @property
    def on_cuda(self) -> bool:
        return self.device == "cuda"

    def left(self) -> float:
        """The seconds left for the part."""
        return self._ends - time.monotonic()

    def has_time(self, seconds: float, what: str) -> bool:
        """True if `what` fits into the time left; else records that it was skipped. On CPU there is no limit."""
        if not self.on_cuda or self.left() >= seconds:
            return True
        self.skip(what, f"{max(self.left(), 0):.0f} s were left and it takes about {seconds:.0f} s")
        return False

    def check(self, what: str, value: float, limit: float) -> None:
        """Checks that a value is at most its limit; NaN fails."""
        finite = value if math.isfinite(value) else None
        self._add("checks", {"what": what, "value": finite, "limit": limit, "passed": value <= limit})

    def require(self, what: str, passed: bool, seen: str = "") -> None:
        """Records a check that must hold, with what was observed."""
        self._add("checks", {"what": what, "value": seen, "limit": None, "passed": bool(passed)})

    def row(self, table: str, **values: Any) -> dict[str, Any]:
        """Adds a row to a table and returns it. The suffixes _bytes and _percent of names give the unit."""
        self.found["tables"].setdefault(table, []).append(values)
        self.save()
        return values

    def skip(self, what: str, why: str) -> None:
        self._add("skipped", f"{what}: {why}")

    def note(self, text: str) -> None:
        """Adds a sentence to the part's tables, such as a formula."""
        self._add("notes", text)

    def _add(self, name: str, value: Any) -> None:
        self.found[name].append(value)
        self.save()

    def save(self) -> None:
        partial = self._file.with_suffix(".partial")
        partial.write_text(json.dumps(self.found, indent=1), encoding="utf-8")
        partial.rename(self._file)


def installed(package: str) -> bool:
    """True if a package is installed; does not import it."""
    return find_spec(package) is not None


def main() -> None:
    name, job = sys.argv[1], Job(**json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")))
    bench = Bench(job)
    import_module(f"benchmarks.gpu.{name}").measure(bench)
    bench.found["status"] = "measured"
    bench.save()


if __name__ == "__main__":
    main()
