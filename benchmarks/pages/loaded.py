"""Measures what each page and each list costs the server of a large installation, in seconds of processor time.

    python -m benchmarks.pages.loaded [--runs 20000] [--waiting 300] [--kinds 300] [--rows 1000000] [--log-bytes 2000000000]
                                      [--data FOLDER] [--only PART] [--json]

It fills a temporary database, or FOLDER once, with a history, a queue whose runs have `--kinds` different data sets, a run with
as many metric rows, and one with a log of this size. Then it asks a new server for each page of the header and each GET route
that answers with JSON: first, that is, with nothing compiled, and again; the least of three. The last column is what the server
uses without requests, in shares of a core. Pages are what the browser gets at once; an open page has the same made again every few
seconds, or less often.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from app.web.addresses import PAGES
from benchmarks import history
from benchmarks.pages import fill
from benchmarks.pages.server import Server, served
from worker.store import database

LIMIT_SECONDS = 0.5
_AGAIN, _LONG_SECONDS = 3, 5.0
_IDLE_SECONDS = 10.0
_LISTS_OF_RUNS = (
    "search=run", "search=name%3Drun", "search=loss%3C0.1", "search=model%3Agpt2", "search=duration%3E1min", "order=model",
    "order=data", "order=duration", "order=progress", "group=method", "group=lora_r", "page=400",
)  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """Seconds of processor time of the server for an address: the first time, and again; and the size of the answer."""

    address: str
    status: int
    first: float
    again: float
    kb: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20_000, help="runs in the history")
    parser.add_argument("--waiting", type=int, default=300, help="runs in the queue")
    parser.add_argument("--kinds", type=int, default=300, help="different data sets of the runs in the queue")
    parser.add_argument("--rows", type=int, default=1_000_000, help="metric rows of the longest run")
    parser.add_argument("--log-bytes", type=int, default=2_000_000_000, help="bytes of the longest log")
    parser.add_argument("--data", type=Path, help="data folder; filled if it is new")
    parser.add_argument("--only", default="", metavar="PART", help="only addresses that contain PART")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lathe-benchmark-") as folder:
        data = arguments.data or Path(folder)
        ids = _filled(data, arguments)
        with served(data) as server:
            result = _measured(server, ids, arguments.only)
    print(json.dumps(result) if arguments.json else table(result))
    return int(any(cost["again"] > LIMIT_SECONDS for cost in result["costs"]))


def _filled(data: Path, arguments: argparse.Namespace) -> dict[str, str]:
    """Fills the data folder unless it is filled. Returns the ids that addresses can name, by the parameter's name."""
    os.environ["LATHE_DATA_DIR"] = str(data)
    known = data / "benchmark.json"
    if known.is_file():
        database.migrate()  # by an older version
        database.dispose()
        found: dict[str, str] = json.loads(known.read_text(encoding="utf-8"))
        return found
    fill.history(arguments.runs)
    dataset = fill.dataset()
    sweep = fill.sweep(dataset)
    run_id, _ = history.fill(arguments.rows // history.STEP_ROWS)
    fill.log(run_id, arguments.log_bytes)
    fill.queue(arguments.waiting, arguments.kinds)
    ids = {"run_id": run_id, "dataset_id": dataset, "sweep_id": sweep}
    known.write_text(json.dumps(ids), encoding="utf-8")
    database.dispose()
    return ids


def _measured(server: Server, ids: dict[str, str], only: str) -> dict[str, Any]:
    with httpx.Client(base_url=server.address, timeout=600) as client:
        addresses = [*_pages(ids), *_routes(client.get("/api/openapi.json").json(), ids)]
        costs = []
        for address in [address for address in addresses if only in address]:
            costs.append(_cost(client, server, address))
            print(_row(asdict(costs[-1])), file=sys.stderr, flush=True)
        began, used = time.monotonic(), server.cpu_seconds()
        time.sleep(_IDLE_SECONDS)
        idle = (server.cpu_seconds() - used) / (time.monotonic() - began)
    return {"costs": [asdict(cost) for cost in costs], "idle": idle, "load": os.getloadavg()[0]}


def _pages(ids: dict[str, str]) -> Iterator[str]:
    shown = {"/run": ids["run_id"], "/sweep": ids["sweep_id"], "/dataset": ids["dataset_id"]}
    for page in PAGES:
        if page.path == "/compare":
            yield f"/compare?runs={ids['run_id']}"
        else:
            yield f"{page.path}?id={shown[page.path]}" if page.path in shown else page.path
    yield from (f"/?{query}" for query in _LISTS_OF_RUNS)
    yield f"/api/runs/{ids['run_id']}/plots"
    yield f"/api/runs/{ids['run_id']}/log-window"
    yield f"/api/runs/{ids['run_id']}/log-window?find=step"


def _routes(document: dict[str, Any], ids: dict[str, str]) -> Iterator[str]:
    """The GET routes that answer with JSON and whose required parameters are known."""
    for path, operations in document["paths"].items():
        operation = operations.get("get", {})
        required = [one for one in operation.get("parameters", []) if one.get("required") and one["in"] == "query"]
        answers = operation.get("responses", {}).get("200", {}).get("content", {})
        if "application/json" not in answers or required or set(re.findall(r"{(\w+)}", path)) - set(ids):
            continue
        yield path.format(**ids)


def _cost(client: httpx.Client, server: Server, address: str) -> Cost:
    first, answer = _asked(client, server, address)
    repeats = _AGAIN if first < _LONG_SECONDS else 1
    again = min(_asked(client, server, address)[0] for _ in range(repeats))
    return Cost(address, answer.status_code, first, again, len(answer.content) / 1000)


def _asked(client: httpx.Client, server: Server, address: str) -> tuple[float, httpx.Response]:
    used = server.cpu_seconds()
    answer = client.get(address)
    return server.cpu_seconds() - used, answer


def table(result: dict[str, Any]) -> str:
    """The figures for people, the costliest addresses first."""
    costs = sorted(result["costs"], key=lambda cost: -cost["again"])
    return "\n".join([_HEAD, *map(_row, costs), f"idle {result['idle']:.1%} of a core, load {result['load']:.1f}"])


_HEAD = f"{'address':64}{'status':>8}{'first s':>10}{'again s':>10}{'kB':>10}"


def _row(cost: dict[str, Any]) -> str:
    return f"{cost['address'][:63]:64}{cost['status']:8}{cost['first']:10.2f}{cost['again']:10.2f}{cost['kb']:10.1f}"


if __name__ == "__main__":
    sys.exit(main())
