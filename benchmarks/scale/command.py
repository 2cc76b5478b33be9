"""Measures how large an installation may be.

    python -m benchmarks.scale --part limits [--queued 1000] [--claimers 8] [--writers 1 4] [--repeat 3] [--json]
    python -m benchmarks.scale --part cluster [--nodes 1000] [--days 7] [--rate rsc-1] [--seed 1] [--json]

`limits`, on SQLite and on PostgreSQL (LATHE_TEST_POSTGRES_URL) where it answers: how fast runs are queued and claimed, how long a
worker's look at the queue and the query of the page Runs take, what many workers claim at once, and how many metric rows
supervisors store in a second. Databases take turns; figures are medians.

`cluster`: the engine slurm with its worker's rounds drives a simulated cluster in virtual time. Nodes fail at a published rate;
only the training itself is a model. Prints the effective training time beside the formula of Young and Daly, and exits with 1 if a
run is lost or doubled.
"""

import argparse
import json
import logging
import sys

RATES = ("rsc-1", "rsc-2", "llama3")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("limits", "cluster"), required=True)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    limits = parser.add_argument_group("limits")
    limits.add_argument("--queued", type=int, nargs="+", default=[1000], help="runs in the queue")
    limits.add_argument("--claimers", type=int, default=8, help="processes that claim runs at once")
    limits.add_argument("--claims", type=int, default=60, help="runs that they claim")
    limits.add_argument("--writers", type=int, nargs="+", default=[1, 4], help="supervisors that store metrics at once")
    limits.add_argument("--seconds", type=float, default=1.5, help="seconds for which they store")
    limits.add_argument("--repeat", type=int, default=3, help="repetitions; medians are printed")
    limits.add_argument("--databases", nargs="+", choices=("sqlite", "postgresql"), default=["sqlite", "postgresql"])
    cluster = parser.add_argument_group("cluster")
    cluster.add_argument("--nodes", type=int, default=1000)
    cluster.add_argument("--days", type=float, default=7.0, help="days in which runs are queued; then all are let end")
    cluster.add_argument("--rate", default="rsc-1", help=f"{', '.join(RATES)}, or failures per 1,000 node-days")
    cluster.add_argument("--seed", type=int, default=1)
    cluster.add_argument("--interval", type=float, default=30, help="minutes of steps between two checkpoints")
    cluster.add_argument("--stall", type=float, default=10, help="seconds for which a checkpoint stops training")
    cluster.add_argument("--load", type=float, default=300, help="seconds from the start of a job to its first step")
    cluster.add_argument(
        "--silent", type=float, default=0.5, help="share of failures after which a node does not answer"
    )
    cluster.add_argument("--max-attempts", type=int, default=3, help="LATHE_MAX_ATTEMPTS")
    cluster.add_argument("--programs", action="store_true", help="start Slurm's commands as programs, 20 ms each")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    sys.exit(_limits(arguments) if arguments.part == "limits" else _cluster(arguments))


def _limits(arguments: argparse.Namespace) -> int:
    from benchmarks.scale.limits import measure

    found = measure.measure(arguments)
    print(json.dumps(found) if arguments.json else measure.table(found))
    return int(any(row["doubled"] for row in found["claiming"]))


def _cluster(arguments: argparse.Namespace) -> int:
    from benchmarks.scale.cluster import report
    from benchmarks.scale.cluster.parameters import RATES as PUBLISHED
    from benchmarks.scale.cluster.parameters import Parameters
    from benchmarks.scale.cluster.simulation import simulate

    rate = arguments.rate
    parameters = Parameters(
        nodes=arguments.nodes,
        days=arguments.days,
        seed=arguments.seed,
        failures=PUBLISHED[rate][0] if rate in PUBLISHED else float(rate),
        silent=arguments.silent,
        save_steps=max(1, round(arguments.interval * 6)),
        stall_seconds=arguments.stall,
        load_seconds=arguments.load,
        max_attempts=arguments.max_attempts,
    )
    found = report.document(parameters, simulate(parameters, as_programs=arguments.programs))
    found["source"] = PUBLISHED[rate][1] if rate in PUBLISHED else ""
    print(json.dumps(found) if arguments.json else "\n".join([report.table(found), found["source"]]))
    return int(bool(found["runs_lost"] or found["runs_doubled"] or found["damage"]))
