"""Prints Lighthouse's scores of the pages that are read, 0 to 100: performance and accessibility, on a desktop and on a phone.

    python -m benchmarks.pages.lighthouse --program node_modules/.bin/lighthouse [--only NAME] [--repeat 3] [--faults]

Install Lighthouse outside of the checkout: `npm install lighthouse`. A score is the median over the loads. Lighthouse simulates
10 Mbit/s for a desktop (1280 pixels wide), and 1.6 Mbit/s and a processor four times slower for a phone (390 pixels).
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, required=True, metavar="PATH", help="the program lighthouse")
    parser.add_argument("--only", default="", metavar="NAME", help="only pages whose name has this in it")
    parser.add_argument("--repeat", type=int, default=3, help="loads of each page")
    parser.add_argument("--faults", action="store_true", help="print what costs points, too")
    arguments = parser.parse_args()
    if not arguments.program.is_file():
        parser.error(f"--program: {arguments.program} does not exist. npm install lighthouse creates it.")
    print(f"{'page':24}" + "".join(f"{f'{size} {category}':>24}" for size in _SIZES for category in _CATEGORIES))
    with tempfile.TemporaryDirectory(prefix="lathe-benchmark-") as folder:
        os.environ["LATHE_DATA_DIR"] = folder
        fill.history(_RUNS)
        pages = _pages(Installation.filled(_STEPS, [1]))
        with served(Path(folder)) as server:
            for name, path in pages.items():
                if arguments.only in name:
                    print(_row(name, arguments, server.address + path), flush=True)
        database.dispose()


def _pages(installation: Installation) -> dict[str, str]:
    """The addresses of the pages that are read, by name."""
    read = {"Runs": "/", "Sign in": "/sign-in"} | {name: path for name, (path, _) in installation.pages().items()}
    return {name: path for name, path in read.items() if name not in ("New run", "Run, live: first plot")}


def _row(name: str, arguments: argparse.Namespace, address: str) -> str:
    reports = {size: [_report(arguments.program, address, size) for _ in range(arguments.repeat)] for size in _SIZES}
    scores = (f"{_score(reports[size], category):24.0f}" for size in _SIZES for category in _CATEGORIES)
    faults = _faults([report[0] for report in reports.values()]) if arguments.faults else ()
    return "\n".join([f"{name:24}" + "".join(scores), *faults])


def _score(reports: list[Any], category: str) -> float:
    return statistics.median(report["categories"][category]["score"] or 0 for report in reports) * 100


def _report(program: Path, address: str, size: str) -> Any:
    options = [f"--only-categories={','.join(_CATEGORIES)}", "--output=json", "--quiet", *_SIZES[size]]
    flags = "--chrome-flags=" + " ".join(["--headless", *browser.FLAGS])
    environment = os.environ | {"CHROME_PATH": browser.chromium()}
    done = subprocess.run(
        [program, address, *options, flags],
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    return json.loads(done.stdout)


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
