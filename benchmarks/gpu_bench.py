"""What a part of benchmarks/gpu.py measures with and writes to: `python -m benchmarks.gpu_bench PART JOB.json` runs one part.

The part's findings are written to a file after each of them, so that a part that is cut off keeps what it has measured.
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
    """Where and how a part measures: `device` is cuda or cpu, `small` takes sizes for a CPU, `seconds` is its time."""

    home: str
    file: str
    device: str
    small: bool
    seconds: float

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


class Bench:
    """The findings of a part: checks, tables of rows, and what was skipped with the reason."""

    def __init__(self, job: Job) -> None:
        self.home, self.device, self.small = Path(job.home), job.device, job.small
        self._file, self._ends = Path(job.file), time.monotonic() + job.seconds
        self.found: dict[str, Any] = {"status": "running", "checks": [], "tables": {}, "skipped": [], "notes": []}
        self.save()

    @property
    def on_cuda(self) -> bool:
        return self.device == "cuda"

    def left(self) -> float:
        """Seconds that the part may still take."""
        return self._ends - time.monotonic()

    def has_time(self, seconds: float, what: str) -> bool:
        """Whether `what` fits into the time left; says that it was skipped where it does not. CPU times are not budgeted."""
        if not self.on_cuda or self.left() >= seconds:
            return True
        self.skip(what, f"{max(self.left(), 0):.0f} s were left and it takes about {seconds:.0f} s")
        return False

    def check(self, what: str, value: float, limit: float) -> None:
        """A value that must not be above its limit; NaN is above every limit."""
        kept = value if math.isfinite(value) else None
        self._add("checks", {"what": what, "value": kept, "limit": limit, "passed": value <= limit})

    def require(self, what: str, passed: bool, seen: str = "") -> None:
        """A statement that must hold, and what was seen."""
        self._add("checks", {"what": what, "value": seen, "limit": None, "passed": bool(passed)})

    def row(self, table: str, **values: Any) -> dict[str, Any]:
        """A row of a table, which may be added to before the next `save`. Names that end in _bytes or _percent say the unit."""
        self.found["tables"].setdefault(table, []).append(values)
        self.save()
        return values

    def skip(self, what: str, why: str) -> None:
        self._add("skipped", f"{what}: {why}")

    def note(self, text: str) -> None:
        """A sentence that stands with the part's tables, such as a formula."""
        self._add("notes", text)

    def _add(self, name: str, value: Any) -> None:
        self.found[name].append(value)
        self.save()

    def save(self) -> None:
        partial = self._file.with_suffix(".partial")
        partial.write_text(json.dumps(self.found, indent=1), encoding="utf-8")
        partial.rename(self._file)


def installed(package: str) -> bool:
    """Whether a package can be imported, without importing it."""
    return find_spec(package) is not None


def main() -> None:
    name, job = sys.argv[1], Job(**json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")))
    bench = Bench(job)
    import_module(f"benchmarks.gpu_{name}").measure(bench)
    bench.found["status"] = "measured"
    bench.save()


if __name__ == "__main__":
    main()
