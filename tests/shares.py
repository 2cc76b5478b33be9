"""Which test files each of several processes runs: files in the order of their paths, cut into shares of equal duration.

Neighbors need the same libraries, servers and processes, which the process that runs them starts once. Each process collects its
own files only. `durations.json` holds for each file the seconds of its tests in `make quick`, of its others in `make test`, and of
its nightly ones, as `make test-all` measured them.
"""

import json
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

DURATIONS = Path(__file__).with_name("durations.json")
NEW_FILE_SECONDS = 2.0
FILE_SECONDS = 0.1  # to import it
NOT_QUICK = ("train", "browser", "slow")


@cache
def files(config: pytest.Config, index: int, count: int) -> frozenset[Path]:
    """The files of process `index` of `count`, from those that the command line names."""
    folder = config.invocation_params.dir
    ignored = [(folder / path).resolve() for path in config.getoption("ignore") or ()]
    listed = sorted({file for argument in config.args for file in _test_files(folder, argument)})
    listed = [file for file in listed if not any(file.is_relative_to(path) for path in ignored)]
    seconds = _seconds(config, listed)
    middles = [sum(seconds[:number]) + own / 2 for number, own in enumerate(seconds)]
    chosen = (int(count * middle / sum(seconds)) for middle in middles)
    return frozenset(file for file, share in zip(listed, chosen, strict=True) if share == index)


def _test_files(folder: Path, argument: str) -> list[Path]:
    path = (folder / argument.partition("::")[0]).resolve()
    return [path] if path.is_file() else list(path.rglob("test_*.py"))


def _seconds(config: pytest.Config, listed: list[Path]) -> list[float]:
    measured: dict[str, list[float]] = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
    marks = config.option.markexpr
    kinds = 1 if "not slow" in marks else 2 if "not nightly" in marks else 3
    new = [NEW_FILE_SECONDS]
    return [FILE_SECONDS + sum(measured.get(str(file.relative_to(config.rootpath)), new)[:kinds]) for file in listed]


class Recorder:
    """Writes the durations of this run's tests into `durations.json`, and keeps those of other tests."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * 3)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if hasattr(report, "context"):  # a subtest, whose time is in its test's
            return
        kind = 2 if "nightly" in report.keywords else any(mark in report.keywords for mark in NOT_QUICK)
        self._seconds[report.nodeid.partition("::")[0]][kind] += report.duration

    def pytest_sessionfinish(self) -> None:
        before = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
        rows = []
        for file in sorted(before.keys() | self._seconds):
            if (DURATIONS.parents[1] / file).exists():
                pairs = zip(self._seconds[file], before.get(file, [0.0] * 3), strict=True)
                quick, other, nightly = (seconds or known for seconds, known in pairs)
                rows.append(f'  "{file}": [{quick:.1f}, {other:.1f}, {nightly:.1f}]')
        DURATIONS.write_text("{\n" + ",\n".join(rows) + "\n}\n")
