"""Prints Lighthouse's scores of the pages that are read, 0 to 100: performance and accessibility, on a desktop and on a phone.

    python -m benchmarks.pages.lighthouse --program node_modules/.bin/lighthouse [--only NAME] [--repeat 3] [--faults]

Install Lighthouse outside of the checkout: `npm install lighthouse`. A score is the median over the loads. Lighthouse simulates
10 Mbit/s for a desktop (1280 pixels wide), and 1.6 Mbit/s and a processor four times slower for a phone (390 pixels). The last
column is the machine's load after the page: what else runs there costs points.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app.web.addresses import PAGES
from benchmarks.pages import browser, fill
from benchmarks.pages.installation import Installation
from benchmarks.pages.server import served
from worker.store import database

_CATEGORIES = ("performance", "accessibility")
_SCREEN = "--screenEmulation.width={} --screenEmulation.height={} --screenEmulation.deviceScaleFactor=1"
_SIZES = {
    "desktop": ["--preset=desktop", *_SCREEN.format(1280, 900).split()],
    "phone": ["--form-factor=mobile", "--screenEmulation.mobile", *_SCREEN.format(390, 844).split()],
}
_RUNS, _STEPS = 100, 2000
_TRIES = 5  # a busy machine loses some of what Lighthouse needs to compute a score


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, required=True, metavar="PATH", help="the program lighthouse")
    parser.add_argument("--only", default="", metavar="NAME", help="only pages whose name has this in it")
    parser.add_argument("--repeat", type=int, default=3, help="loads of each page")
    parser.add_argument("--faults", action="store_true", help="print what costs points, too")
    arguments = parser.parse_args()
    if not arguments.program.is_file():
        parser.error(f"--program: {arguments.program} does not exist. npm install lighthouse creates it.")
    head = "".join(f"{f'{size} {category}':>23}" for size in _SIZES for category in _CATEGORIES)
    print(f"{'page':24}{head}{'load':>6}", flush=True)
    with tempfile.TemporaryDirectory(prefix="lathe-benchmark-") as folder:
        os.environ["LATHE_DATA_DIR"] = folder
        fill.history(_RUNS)
        installation = Installation.filled(_STEPS, [1])
        pages = _pages(installation)
        with served(Path(folder)) as server, fill.training(installation.live):
            for name, path in pages.items():
                if arguments.only in name:
                    print(_row(name, arguments, server.address + path), flush=True)
        database.dispose()


def _pages(installation: Installation) -> dict[str, str]:
    """The addresses of the pages that are read, by name."""
    read = {"Runs": "/", "Sign in": "/sign-in"} | {name: path for name, (path, _) in installation.pages().items()}
    paths = {page.path for page in PAGES if page.is_read} | {"/sign-in"}
    pages = {name: path for name, path in read.items() if path.partition("?")[0] in paths}
    missing = paths - {path.partition("?")[0] for path in pages.values()}
    if missing:
        raise RuntimeError(f"Installation.pages does not have {', '.join(sorted(missing))}.")
    return {name: path for name, path in pages.items() if name != "Run, live: first plot"}


def _row(name: str, arguments: argparse.Namespace, address: str) -> str:
    reports = {size: [_report(arguments.program, address, size) for _ in range(arguments.repeat)] for size in _SIZES}
    scores = "".join(f"{_score(reports[size], category):23.0f}" for size in _SIZES for category in _CATEGORIES)
    faults = _faults([report[0] for report in reports.values()]) if arguments.faults else ()
    return "\n".join([f"{name:24}{scores}{os.getloadavg()[0]:6.1f}", *faults])


def _score(reports: list[Any], category: str) -> float:
    return float(statistics.median(report["categories"][category]["score"] for report in reports)) * 100


def _report(program: Path, address: str, size: str) -> Any:
    options = [f"--only-categories={','.join(_CATEGORIES)}", "--output=json", "--quiet", *_SIZES[size]]
    flags = "--chrome-flags=" + " ".join(["--headless", *browser.FLAGS])
    environment = os.environ | {"CHROME_PATH": browser.chromium()}
    problem = ""
    for _ in range(_TRIES):
        done = subprocess.run(
            [program, address, *options, flags], env=environment, capture_output=True, text=True, check=False
        )
        problem = done.stderr
        if done.returncode == 0:
            report = json.loads(done.stdout)
            problem = report.get("runtimeError", {}).get("message", "")
            if not problem and all(report["categories"][category]["score"] is not None for category in _CATEGORIES):
                return report
    raise RuntimeError(f"Lighthouse could not read {address} in {_TRIES} tries: {problem}")


def _faults(reports: list[Any]) -> Iterator[str]:
    """The audits that cost points, with their values and the elements that they name."""
    for report in reports:
        weights = {one["id"]: one["weight"] for name in _CATEGORIES for one in report["categories"][name]["auditRefs"]}
        for name, audit in report["audits"].items():
            if weights.get(name) and (audit["score"] or 0) < 1 and audit["score"] is not None:
                nodes = [item.get("node", {}).get("snippet", "") for item in audit.get("details", {}).get("items", [])]
                yield f"    {name}: {audit['score']}, {audit.get('displayValue', '')} {' '.join(nodes)[:300]}"


if __name__ == "__main__":
    main()
