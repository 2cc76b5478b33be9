"""Prints the line coverage of app, worker and training by `make test` and by `make test-all`: `python tests/line_coverage.py`.

`make test-all` runs what `make test` runs and the nightly tests, so the latter's lines are added to the former's. Every process
that the tests start counts, the training processes too; cached trainings are trained again. Processes that a test kills do not
count, since what they ran is lost with them. `--checkout FOLDER` measures another checkout with the environment FOLDER/.venv.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGES = ("app", "worker", "training")
SUITES = {"make test": ["-m", "not nightly"], "make test-all": ["-m", "nightly"]}
SHARED = ["--numprocesses", "3", "--dist", "each", "--max-worker-restart", "0"]
CONFIGURATION = """
[run]
source = app,worker,training
parallel = true
data_file = {folder}/data
patch = subprocess,fork,_exit
concurrency = thread
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", type=Path, default=Path(__file__).parents[1], help="the checkout to measure")
    parser.add_argument("--short", action="store_true", help="only make test")
    parser.add_argument("--pytest", default=" ".join(SHARED), help="how pytest shares the tests among processes")
    asked = parser.parse_args()
    checkout = asked.checkout.resolve()
    shutil.rmtree(checkout / ".pytest_cache" / "trained", ignore_errors=True)
    print(f"{'suite':14}{'statements':>12}" + "".join(f"{package:>10}" for package in (*PACKAGES, "all")), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for suite in list(SUITES)[: 1 if asked.short else None]:
            print_row(suite, measure(checkout, [*asked.pytest.split(), *SUITES[suite]], Path(folder)))


def measure(checkout: Path, arguments: list[str], folder: Path) -> dict[str, tuple[int, int]]:
    """Covered and all statements of each package, by this call and those before with the same folder.

    Raises SystemExit if coverage.py cannot report.
    """
    python = str(checkout / ".venv" / "bin" / "python")
    file = folder / "coveragerc"
    file.write_text(CONFIGURATION.format(folder=folder))

    def coverage(*words: str) -> int:
        argv = [python, "-m", "coverage", words[0], f"--rcfile={file}", *words[1:]]
        return subprocess.run(argv, cwd=checkout, env=os.environ, stdout=sys.stderr, check=False).returncode

    if coverage("run", "-m", "pytest", *arguments):
        print("not all tests passed", file=sys.stderr)
    if coverage("combine", "--append", "--quiet") or coverage(
        "json", "--ignore-errors", "-q", "-o", f"{folder}/all.json"
    ):
        raise SystemExit("coverage.py could not combine what the processes wrote")
    return totals(json.loads((folder / "all.json").read_text()))


def totals(report: dict) -> dict[str, tuple[int, int]]:
    """Covered and all statements of each package in a JSON report of coverage.py."""
    sums = dict.fromkeys(PACKAGES, (0, 0))
    for file, result in report["files"].items():
        package, summary = file.split("/")[0], result["summary"]
        covered, statements = sums[package]
        sums[package] = (covered + summary["covered_lines"], statements + summary["num_statements"])
    return sums


def print_row(suite: str, sums: dict[str, tuple[int, int]]) -> None:
    covered, statements = (sum(numbers) for numbers in zip(*sums.values(), strict=True))
    shares = [*(100 * part / whole for part, whole in sums.values()), 100 * covered / statements]
    print(f"{suite:14}{statements:>12,}" + "".join(f"{share:>9.2f}%" for share in shares), flush=True)


if __name__ == "__main__":
    main()
