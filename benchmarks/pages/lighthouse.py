"""Prints Lighthouse's scores of the pages that are read, 0 to 100: performance and accessibility, on a desktop and on a phone.

    python -m benchmarks.pages.lighthouse --program node_modules/.bin/lighthouse [--only NAME] [--repeat 3] [--faults]

Install Lighthouse outside of the checkout: `npm install lighthouse`. A score is the median over the loads. Lighthouse simulates
10 Mbit/s for a desktop (1280 pixels wide), and 1.6 Mbit/s and a processor four times slower for a phone (390 pixels).

Other programs on the machine (the last column is its load) cost points, since Lighthouse takes the time that passes during a task.
The columns "alone" are its performance scores of the same loads if each task had taken the time in which it had a processor.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from app.web.addresses import PAGES
from benchmarks.pages import browser, fill
from benchmarks.pages.installation import Installation
from benchmarks.pages.server import served
from worker.store import database

_CATEGORIES = ("performance", "accessibility")
_COLUMNS = ("performance", "alone", "accessibility")
_SCREEN = "--screenEmulation.width={} --screenEmulation.height={} --screenEmulation.deviceScaleFactor=1"
_SIZES = {
    "desktop": ["--preset=desktop", *_SCREEN.format(1280, 900).split()],
    "phone": ["--form-factor=mobile", "--screenEmulation.mobile", *_SCREEN.format(390, 844).split()],
}
_RUNS, _STEPS = 100, 2000
_TRIES = 5  # a busy machine loses some of what Lighthouse needs to compute a score

Load = tuple[Any, Any]


class _UnreadableError(Exception):
    """Lighthouse has no scores for a load."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, required=True, metavar="PATH", help="the program lighthouse")
    parser.add_argument("--only", default="", metavar="NAME", help="only pages whose name has this in it")
    parser.add_argument("--repeat", type=int, default=3, help="loads of each page")
    parser.add_argument("--faults", action="store_true", help="print what costs points, too")
    arguments = parser.parse_args()
    if not arguments.program.is_file():
        parser.error(f"--program: {arguments.program} does not exist. npm install lighthouse creates it.")
    print(f"{'page':26}{_line(f'{size} {column}' for size in _SIZES for column in _COLUMNS)}{'load':>6}", flush=True)
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
    loads = {size: [_load(arguments.program, address, size) for _ in range(arguments.repeat)] for size in _SIZES}
    scores = (
        f"{statistics.median(score(load, category) for load in loads[size]):.0f}"
        for size in _SIZES
        for score, category in ((_score, "performance"), (_score_alone, "performance"), (_score, "accessibility"))
    )
    faults = _faults([reports[0][0] for reports in loads.values()]) if arguments.faults else ()
    return "\n".join([f"{name:26}{_line(scores)}{os.getloadavg()[0]:6.1f}", *faults])


def _line(texts: Iterable[str]) -> str:
    return "".join(f"{text:>22}" for text in texts)


def _score(load: Load, category: str) -> float:
    return float(load[0]["categories"][category]["score"]) * 100


def _score_alone(load: Load, category: str) -> float:
    return float(load[1]["categories"][category]["score"]) * 100


def _load(program: Path, address: str, size: str) -> Load:
    """The reports of one load: as it was, and with the processor time of the tasks."""
    flags = "--chrome-flags=" + " ".join(["--headless", *browser.FLAGS])
    command = [str(program), address, f"--only-categories={','.join(_CATEGORIES)}", "--output=json", "--quiet", flags]
    problem = ""
    for _ in range(_TRIES):
        with tempfile.TemporaryDirectory(prefix="lathe-benchmark-") as kept:
            try:
                report = _report([*command, *_SIZES[size], f"-GA={kept}"])
                _take_processor_time(Path(kept) / "defaultPass.trace.json")
                return report, _report([*command, *_SIZES[size], f"-A={kept}"])
            except _UnreadableError as error:
                problem = str(error)
    raise RuntimeError(f"Lighthouse could not read {address} in {_TRIES} tries: {problem}")


def _report(command: list[str]) -> Any:
    environment = os.environ | {"CHROME_PATH": browser.chromium()}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise _UnreadableError(done.stderr)
    report = json.loads(done.stdout)
    if "runtimeError" in report or None in [report["categories"][category]["score"] for category in _CATEGORIES]:
        raise _UnreadableError(report.get("runtimeError", {}).get("message", "no score"))
    return report


def _take_processor_time(trace: Path) -> None:
    content = json.loads(trace.read_text())
    for event in content["traceEvents"]:
        if "tdur" in event and "dur" in event:
            event["dur"] = min(event["dur"], max(event["tdur"], 1))
    trace.write_text(json.dumps(content))


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
