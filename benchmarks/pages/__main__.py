"""Measures the pages in a real browser, 50 viewers of one live run, and one more person beside a crowd of connections.

    python -m benchmarks.pages [--runs 100] [--steps 10000] [--ranks 1] [--repeat 3] [--viewers 50] [--only NAME] [--json]
    python -m benchmarks.pages --only crowd [--incomplete 2000] [--streams 150 400 10000] [--account-streams 10000]

For each page, cold (an empty cache) and warm: milliseconds until something is drawn (first), until its useful content is, and until
its controls work (live); kB and requests until then; then what an open page costs a second: bytes received, and milliseconds of
processor time of the server and of the browser. The loads of all pages take turns; figures are medians. Of the live run:
milliseconds from storing a step to receiving it, and the server's share of a core. TensorBoard and Trackio are measured beside it
where they are installed. The last line is the machine's load: other programs make all times longer. Of the crowd: milliseconds
until /healthz and the page Runs are answered.
"""

import argparse
import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.pages import browser, crowd, fill, others, viewers
from benchmarks.pages.installation import Installation
from benchmarks.pages.server import served
from worker.store import database

PAGE_SECONDS = 10.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=[100], help="runs in the history")
    parser.add_argument("--steps", type=int, default=10_000, help="steps of the long runs")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1], help="ranks of the long runs")
    parser.add_argument("--repeat", type=int, default=3, help="loads of each page")
    parser.add_argument("--viewers", type=int, default=50, help="viewers of the live run")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds for which the live run is watched")
    parser.add_argument("--incomplete", type=int, default=2000, help="incomplete requests at a time")
    parser.add_argument(
        "--streams", type=int, nargs="+", default=[150, 400, 10_000], help="live streams, and open pages, at a time"
    )
    parser.add_argument(
        "--account-streams", type=int, nargs="*", default=[10_000], help="live streams of 40 accounts at a time"
    )
    parser.add_argument(
        "--only", default="", metavar="NAME", help="only pages whose name has this in it, and no viewers; or the crowd"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    result: dict[str, Any] = {"pages": [], "viewers": [], "crowds": []}
    for runs in arguments.runs:
        with tempfile.TemporaryDirectory(prefix="lathe-benchmark-") as folder:
            _measure(Path(folder), runs, runs == arguments.runs[0], arguments, result)
    result["load"] = os.getloadavg()[0]
    print(json.dumps(result) if arguments.json else told(result))


def _measure(folder: Path, runs: int, first: bool, arguments: argparse.Namespace, result: dict[str, Any]) -> None:
    os.environ["LATHE_DATA_DIR"] = str(folder / "data")
    fill.history(runs)
    installation = Installation.filled(arguments.steps, arguments.ranks) if first else None
    pages = {f"Runs, {runs:,} runs": ("/", "table.runs td.name a")} | (installation.pages() if installation else {})
    live = installation.live if installation else ""
    with (
        served(folder / "data") as server,
        others.served(folder, bool(live) and arguments.only != "crowd") as programs,
    ):
        own = [browser.Measured(name, server, *place) for name, place in pages.items()]
        others_pages = [
            browser.Measured(f"{program.name}: first plot", other, "/", program.plot, is_own=False)
            for program, other in programs
        ]
        chosen = [page for page in [*own, *others_pages] if arguments.only in page.name]
        with fill.training(live) if live else fill.nothing():
            print(_HEAD, file=sys.stderr, flush=True)
            costs = browser.measure(
                chosen, arguments.repeat, PAGE_SECONDS, lambda cost: print(_row(asdict(cost)), file=sys.stderr)
            )
            result["pages"] += map(asdict, costs)
            if live and not arguments.only:
                result["viewers"].append(asdict(viewers.watch(server, live, arguments.viewers, arguments.seconds)))
            if live and arguments.only == "crowd":
                streams, of_accounts = arguments.streams, arguments.account_streams
                crowds = crowd.measure(server, live, arguments.incomplete, streams, of_accounts)
                result["crowds"] += map(asdict, crowds)
        if not arguments.only:
            result["viewers"] += [
                asdict(others.watch(*pair, arguments.viewers, arguments.seconds)) for pair in programs
            ]
    database.dispose()


def told(result: dict[str, Any]) -> str:
    """The figures as tables."""
    lines = [_HEAD, *map(_row, result["pages"])] if result["pages"] else []
    if result["viewers"]:
        lines += ["", f"{'one live run':24}{'viewers':>9}{'p50 ms':>9}{'p95 ms':>9}{'kB/s each':>11}{'of a core':>11}"]
    for one in result["viewers"]:
        lines.append(
            f"{one['program']:24}{one['viewers']:9}{one['p50_ms']:9.0f}{one['p95_ms']:9.0f}"
            f"{one['kb_per_second']:11.2f}{one['core_share']:11.1%}"
        )
    if result["crowds"]:
        lines += ["", f"{'beside':24}{'open':>9}{'kept':>9}{'refused':>9}{'failed':>9}"]
        lines[-1] += f"{'/healthz ms':>13}{'worst':>9}{'Runs ms':>11}{'worst':>9}{'after':>9}"
    for one in result["crowds"]:
        lines.append(
            f"{one['kind']:24}{one['connections']:9}{one['kept']:9}{one['refused']:9}{one['failed']:9}"
            f"{one['healthz_p50_ms']:13.0f}"
            f"{one['healthz_worst_ms']:9.0f}{one['page_p50_ms']:11.0f}{one['page_worst_ms']:9.0f}"
            f"{one['after_ms']:9.0f}"
        )
    return "\n".join([*lines, "", f"load {result['load']:.1f}"])


_LOAD = ("first_ms", "useful_ms", "live_ms", "kb", "requests")
_OPEN = ("open_bytes_per_second", "open_cpu_ms_per_second", "open_browser_ms_per_second")
_HEAD = (
    f"{'page':28}"
    + "".join(f"{cache + ' ' + name.removesuffix('_ms'):>14}" for cache in ("cold", "warm") for name in _LOAD)
    + f"{'open B/s':>10}{'server':>8}{'browser':>8}"
)


def _row(page: dict[str, Any]) -> str:
    loads = "".join(f"{page[cache][name]:14.0f}" for cache in ("cold", "warm") for name in _LOAD)
    return f"{page['page']:28}{loads}{page[_OPEN[0]]:10.0f}{page[_OPEN[1]]:8.1f}{page[_OPEN[2]]:8.1f}"


if __name__ == "__main__":
    main()
