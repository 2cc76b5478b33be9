"""Checks the nodes of a run on several machines in the first seconds, before anything is loaded.

One rank of each node reports its facts at the process group's store, which needs no collective: libraries of different versions may
hang in one. Every engine starts ranks, so this serves them all.
"""

import json
import os
import time
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from training.ranks import node_facts, node_links
from training.ranks.node_facts import NodeFacts
from training.ranks.node_links import Link
from training.reports.report import Report
from training.run_folder.events import NodeFault, Note

_PATIENCE = timedelta(minutes=2)
_REPORT_SECONDS = 2.0
_OK = b"ok"


def check_nodes(report: Report, run_dir: Path, device: torch.device, facts: NodeFacts | None = None) -> None:
    """Compares the nodes and times the network between them; every rank of the run calls it. On one machine it does nothing.

    Args:
        device: Where the training's collectives have their tensors.
        facts: Those of this node; measured if not given.

    Raises:
        NodeRefused: on rank 0, if a node's versions differ. Other ranks end their process.
    """
    nodes, here = int(os.environ.get("GROUP_WORLD_SIZE", "1")), int(os.environ.get("GROUP_RANK", "0"))
    if nodes < 2 or not dist.is_initialized():
        return
    began = time.perf_counter()
    store = dist.distributed_c10d.PrefixStore("node check", dist.distributed_c10d._get_default_store())
    is_leader = os.environ.get("LOCAL_RANK", "0") == "0"
    if is_leader:
        store.set(f"facts {here}", json.dumps(asdict(facts or node_facts.facts_here(here, run_dir))))
        store.set(f"rank {here}", str(dist.get_rank()))
    known = _agree(report, store, nodes)
    leaders = [int(store.get(f"rank {node}")) for node in range(nodes)]
    own = here if is_leader else None
    clocks, links = node_links.clock_offset(leaders, own), node_links.measure(leaders, own, device)
    if is_leader:
        store.set(f"links {here}", json.dumps([asdict(link) for link in links]))
    if report.rank == 0:
        all_links = [Link(**link) for node in range(nodes) for link in _read(store, f"links {node}")]
        _report(report, known, clocks, all_links, time.perf_counter() - began)


def _agree(report: Report, store: Any, nodes: int) -> list[NodeFacts]:
    """On rank 0 the facts of all nodes; returns on all ranks once rank 0 has found that their versions agree."""
    if report.rank:
        if store.get("verdict") != _OK:
            _end_after_rank_0()
        return []
    known = [NodeFacts(**_read(store, f"facts {node}")) for node in range(nodes)]
    refused = node_facts.refusal(known)
    if refused:
        report.for_run(NodeFault(machine=refused.machine, node=refused.node, message=refused.problem.sentence))
        store.set("verdict", "refused")
        raise refused
    store.set("verdict", _OK)
    return known


def _end_after_rank_0() -> None:
    """Ends this process once rank 0 has reported the refusal, and says nothing of its own."""
    time.sleep(_REPORT_SECONDS)  # a machine that ends first ends the others
    os._exit(1)


def _read(store: Any, key: str) -> Any:
    store.wait([key], _PATIENCE)
    return json.loads(store.get(key))


def _report(
    report: Report, nodes: list[NodeFacts], clocks: dict[int, float], links: list[Link], seconds: float
) -> None:
    names = {node.machine: node.name for node in nodes}
    for message in (*node_facts.warnings(nodes, clocks), *node_links.warnings(links, names)):
        report.for_run(Note(message=message, level="warning"))
    slowest = min(links, key=lambda link: link.bandwidth)
    speed = f"{slowest.bandwidth / 1e6:,.0f} MB/s, {slowest.latency * 1000:.2f} ms"
    pair = f"{names[slowest.first]} and {names[slowest.second]}"
    versions = ", ".join(f"{package} {value}" for package, value in sorted(nodes[0].versions.items()))
    text = f"Checked {len(nodes)} nodes in {seconds:.1f} s: {versions}; slowest pair {pair} with {speed}."
    report.for_run(Note(message=text))
