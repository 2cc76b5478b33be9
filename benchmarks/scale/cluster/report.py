"""The figures of a simulated cluster, as JSON and as a table."""

from dataclasses import asdict
from typing import Any

from benchmarks.scale.cluster import formula
from benchmarks.scale.cluster.ledger import CAUSES, Account
from benchmarks.scale.cluster.parameters import Parameters
from benchmarks.scale.cluster.simulation import Outcome
from worker.store.tables import Status


def document(parameters: Parameters, outcome: Outcome) -> dict[str, Any]:
    """The figures; node-hours are hours times the nodes of the run."""
    accounts = list(outcome.accounts.values())
    lost = sum(status is not Status.FINISHED for status in outcome.status.values())
    return {
        "parameters": {name: value for name, value in asdict(parameters).items() if name != "mix"},
        "classes": [
            _class(parameters, nodes, accounts) for nodes in sorted({one.nodes for one in accounts}, reverse=True)
        ],
        "all": _figures(accounts),
        "runs": len(accounts),
        "runs_lost": lost + len(accounts) - len(outcome.status),
        "runs_doubled": sum(one.doubled for one in accounts),
        "damage": outcome.damage,
        "node_failures": outcome.node_failures,
        "failures_per_1000_node_days": outcome.node_failures / outcome.node_days * 1000,
        "simulated_days": outcome.node_days / parameters.nodes,
        "rounds": outcome.rounds,
        "round_ms": outcome.round_ms,
        "calls": outcome.calls,
        "seconds": outcome.seconds,
    }


def _class(parameters: Parameters, nodes: int, accounts: list[Account]) -> dict[str, Any]:
    mine = [one for one in accounts if one.nodes == nodes]
    useful = sum(one.seconds["useful"] for one in mine) / len(mine)
    return _figures(mine) | {
        "nodes": nodes,
        "runs": len(mine),
        "formula_ratio": formula.share(parameters, nodes, useful) if useful else 0.0,
        "interval_minutes": parameters.interval / 60,
        "best_interval_minutes": formula.best_interval(parameters, nodes) / 60,
    }


def _figures(accounts: list[Account]) -> dict[str, Any]:
    hours = {cause: sum(one.seconds[cause] * one.nodes for one in accounts) / 3600 for cause in CAUSES}
    held = sum(hours.values())
    return {
        "ratio": hours["useful"] / held if held else 0.0,
        "failures": sum(one.failures for one in accounts),
        "held_node_hours": held,
        "node_hours": hours,
        "queue_hours": sum(one.queued for one in accounts) / 3600,
        "requeue_hours": sum(one.requeued for one in accounts) / 3600,
    }


def table(found: dict[str, Any]) -> str:
    """The figures for people."""
    of = found["parameters"]
    lines = [
        f"{of['nodes']:,} nodes, {found['simulated_days']:.1f} days until all {found['runs']:,} runs had ended, seed {of['seed']};"
        f" {found['node_failures']:,} node failures"
        f" ({found['failures_per_1000_node_days']:.2f} per 1,000 node-days; rate {of['failures']:.2f})",
        f"a checkpoint every {of['save_steps'] * of['step_seconds'] / 60:.0f} min, stall {of['stall_seconds']:.0f} s, written in"
        f" {of['write_seconds']:.0f} s; start {of['load_seconds']:.0f} s; lost nodes noticed after"
        f" {of['detection_seconds']:.0f} s, lease {of['lease_seconds']:.0f} s, at most {of['max_attempts']:,} attempts",
        "",
        f"{'nodes':>6}{'runs':>6}{'failures':>10}{'effective':>11}{'Daly':>8}{'interval':>10}{'Young':>9}",
    ]
    for row in found["classes"]:
        lines.append(
            f"{row['nodes']:>6}{row['runs']:>6}{row['failures']:>10}{row['ratio']:>11.2%}{row['formula_ratio']:>8.2%}"
            f"{row['interval_minutes']:>6.0f} min{row['best_interval_minutes']:>5.0f} min"
        )
    total = found["all"]
    lines += [
        "",
        f"effective training time: {total['ratio']:.2%} of {total['held_node_hours']:,.0f} node-hours that runs held",
    ]
    lines += [f"{hours:>12,.0f} node-hours {cause}" for cause, hours in total["node_hours"].items()]
    lines += [
        f"in Slurm's queue: {total['queue_hours']:,.1f} h before the first start, {total['requeue_hours']:,.1f} h after failures",
        f"runs lost: {found['runs_lost']}   runs doubled: {found['runs_doubled']}   other damage: {len(found['damage'])}",
        f"took {found['seconds']:.0f} s: {found['rounds']:,} rounds of the worker, median {found['round_ms']:.0f} ms;"
        f" {', '.join(f'{count:,} {name}' for name, count in found['calls'].items())}",
    ]
    return "\n".join(lines + found["damage"])
