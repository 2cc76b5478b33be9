"""Measures the pages in a real browser, 50 viewers of one live run, and one more person beside a crowd of connections.

    python -m benchmarks.pages [--runs 10 10000] [--steps 100000] [--ranks 1 8] [--viewers 50]
                               [--incomplete 2000] [--streams 150 400 10000] [--account-streams 10000] [--only NAME] [--json]

For each page, cold (an empty cache) and warm: milliseconds until its useful content is drawn, and until its controls work (live);
requests and kB received until then; then what an open page costs: kB received and the server's processor time per second. Of the
live run: milliseconds from storing a step to receiving it, and the server's share of a core. TensorBoard and Trackio are measured
beside it where they are installed. Of the crowd: milliseconds until /healthz and the page Runs are answered. `--only crowd`
measures the crowd alone.
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

PAGE_SECONDS = 12.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=[10, 10_000], help="runs in the history")
    parser.add_argument("--steps", type=int, default=100_000, help="steps of the long runs")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 8], help="ranks of the long runs")
    parser.add_argument("--repeat", type=int, default=3, help="loads of each page")
    parser.add_argument("--viewers", type=int, default=50, help="viewers of the live run")
    parser.add_argument("--seconds", type=float, default=30.0, help="seconds for which the live run is watched")
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
    print(json.dumps(result) if arguments.json else told(result))


def _measure(folder: Path, runs: int, first: bool, arguments: argparse.Namespace, result: dict[str, Any]) -> None:
    os.environ["LATHE_DATA_DIR"] = str(folder / "data")
    fill.history(runs)
    installation = Installation.filled(arguments.steps, arguments.ranks) if first else None
    pages = {f"Runs, {runs:,} runs": ("/", "table.runs td.name a")} | (installation.pages() if installation else {})
    live = installation.live if installation else ""
    with served(folder / "data") as server:
        with fill.training(live) if live else fill.nothing():
            for name, (path, selector) in pages.items():
                if arguments.only not in name:
                    continue
                page = browser.measure(server, path, selector, arguments.repeat, PAGE_SECONDS)
                result["pages"].append({"page": name, **asdict(page)})
                print(_row(result["pages"][-1]), file=sys.stderr, flush=True)
            if live and not arguments.only:
                result["viewers"].append(asdict(viewers.watch(server, live, arguments.viewers, arguments.seconds)))
            if live and arguments.only in ("", "crowd"):
                streams, of_accounts = arguments.streams, arguments.account_streams
                crowds = crowd.measure(server, live, arguments.incomplete, streams, of_accounts)
                result["crowds"] += map(asdict, crowds)
        if live and not arguments.only:
            result["viewers"] += [asdict(one) for one in others.measure(folder, arguments.viewers, arguments.seconds)]
    database.dispose()


def told(result: dict[str, Any]) -> str:
    """The figures as two tables."""
    head = f"{'page':38}{'cold ms':>9}{'live':>7}{'warm ms':>9}{'live':>7}"
    head += f"{'cold kB':>9}{'warm kB':>9}{'requests':>9}{'open B/s':>10}{'CPU ms/s':>9}"
    lines = [head]
    lines += [_row(page) for page in result["pages"]]
    lines += ["", f"{'one live run':24}{'viewers':>9}{'p50 ms':>9}{'p95 ms':>9}{'kB/s each':>11}{'of a core':>11}"]
    for one in result["viewers"]:
        lines.append(
            f"{one['program']:24}{one['viewers']:9}{one['p50_ms']:9.0f}{one['p95_ms']:9.0f}"
            f"{one['kb_per_second']:11.2f}{one['core_share']:11.1%}"
        )
    head = f"{'beside':24}{'open':>9}{'kept':>9}{'refused':>9}{'failed':>9}"
    head += f"{'/healthz ms':>13}{'worst':>9}{'Runs ms':>11}{'worst':>9}{'after':>9}"
    lines += ["", head]
    for one in result["crowds"]:
        lines.append(
            f"{one['kind']:24}{one['connections']:9}{one['kept']:9}{one['refused']:9}{one['failed']:9}"
            f"{one['healthz_p50_ms']:13.0f}"
            f"{one['healthz_worst_ms']:9.0f}{one['page_p50_ms']:11.0f}{one['page_worst_ms']:9.0f}"
            f"{one['after_ms']:9.0f}"
        )
    return "\n".join(lines)


def _row(page: dict[str, Any]) -> str:
    return (
        f"{page['page']:38}{page['cold_ms']:9.0f}{page['cold_live_ms']:7.0f}{page['warm_ms']:9.0f}"
        f"{page['warm_live_ms']:7.0f}{page['cold_kb']:9.0f}{page['warm_kb']:9.0f}"
        f"{page['requests']:9}{page['open_bytes_per_second']:10.0f}{page['open_cpu_ms_per_second']:9.1f}"
    )


if __name__ == "__main__":
    main()
