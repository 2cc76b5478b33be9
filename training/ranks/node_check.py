"""Checks the nodes of a run on several machines in the first seconds, before anything is loaded.

One rank of each node reports its facts at the process group's store, which needs no collective: libraries of different versions may
hang in one. Every engine starts ranks, so this serves them all.
"""

import json
import os
import platform
import shutil
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch
import torch.distributed as dist

from training.errors import UserError
from training.ranks import node_links
from training.ranks.node_links import Link
from training.reports.report import Report
from training.run_folder.events import NodeFault
from training.units import byte_size

MUST_EQUAL = ("Lathe", "torch", "NCCL")
"""Versions that refuse the attempt if they differ; other versions give a warning."""
CLOCK_SECONDS = 2.0
LEAST_BYTES = 2**30
LEAST_SHARE = 0.5
"""Of the median of the nodes' free memory."""
_PATIENCE = timedelta(minutes=2)
_REPORT_SECONDS = 2.0
_OK = b"ok"


@dataclass(frozen=True)
class NodeFacts:
    """One node: its number in the run, name, versions by package, free host memory and free disk of the data folder in bytes."""

    machine: int
    name: str
    versions: dict[str, str]
    memory_free: int
    disk_free: int


class NodeRefused(UserError):  # noqa: N818
    """A node cannot train with the others. `machine` is its number in the run, `node` its name."""

    def __init__(self, facts: NodeFacts, field: str, value: str, message: str, fix: str) -> None:
        super().__init__(f"{field} on node {facts.name}", value, message, fix)
        self.machine, self.node = facts.machine, facts.name


def node_name() -> str:
    """This machine's name; in a job of Slurm that of the node."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def facts_here(machine: int, run_dir: Path) -> NodeFacts:
    """The facts of this node; takes milliseconds."""
    return NodeFacts(
        machine, node_name(), _versions(), psutil.virtual_memory().available, shutil.disk_usage(run_dir).free
    )


def _versions() -> dict[str, str]:
    import torch

    versions = {"Python": platform.python_version(), "torch": torch.__version__}
    with suppress(PackageNotFoundError):
        versions["Lathe"] = version("lathe-workbench")
    if torch.cuda.is_available():
        import pynvml

        versions["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            versions["CUDA driver"] = str(pynvml.nvmlSystemGetDriverVersion())
    return versions


def refusal(nodes: Sequence[NodeFacts]) -> NodeRefused | None:
    """Why the nodes must not train together: a version of MUST_EQUAL differs. Names the first node that differs from most."""
    for package in MUST_EQUAL:
        common, odd = _odd(nodes, package)
        if odd:
            value = odd[0].versions.get(package, "none")
            message = f"differs from {common} on {_others(nodes, odd)}."
            fix = f"Install {package} {common} on node {odd[0].name}, or give all nodes the same environment."
            return NodeRefused(odd[0], package, value, message, fix)
    return None


def node_warnings(nodes: Sequence[NodeFacts], clocks: Mapping[int, float]) -> list[str]:
    """What may disturb the run, a sentence with its fix each. `clocks` has each node's offset from the first one in seconds."""
    return [*_version_warnings(nodes), *_room_warnings(nodes), *_clock_warnings(nodes, clocks)]


def _version_warnings(nodes: Sequence[NodeFacts]) -> list[str]:
    packages = sorted({package for node in nodes for package in node.versions} - set(MUST_EQUAL))
    return [
        f"Node {node.name} has {package} {node.versions.get(package, 'none')}, {_others(nodes, odd)} {common}. "
        "Give all nodes the same environment."
        for package in packages
        for common, odd in [_odd(nodes, package)]
        for node in odd
    ]


def _room_warnings(nodes: Sequence[NodeFacts]) -> list[str]:
    warnings, usual = [], median(node.memory_free for node in nodes)
    for node in nodes:
        if node.memory_free < max(LEAST_BYTES, LEAST_SHARE * usual):
            free = f"Node {node.name} has {byte_size(node.memory_free)} of free host memory"
            warnings.append(f"{free}; the median of the nodes is {byte_size(usual)}. End other programs there.")
        if node.disk_free < LEAST_BYTES:
            free = f"Node {node.name} has {byte_size(node.disk_free)} of free disk space in the data folder"
            warnings.append(f"{free}. Free disk space (page System), or checkpoints cannot be saved.")
    return warnings


def _clock_warnings(nodes: Sequence[NodeFacts], clocks: Mapping[int, float]) -> list[str]:
    offsets = {node.name: clocks.get(node.machine, 0.0) for node in nodes}
    # Of two clocks that differ nothing shows which is right: the first node's counts.
    middle = median(offsets.values()) if len(nodes) > 2 else 0.0
    return [
        f"The clock of node {name} is {abs(offset - middle):.1f} s {'ahead of' if offset > middle else 'behind'} the "
        "others: the times of its records are wrong. Start its time service (chrony or systemd-timesyncd)."
        for name, offset in offsets.items()
        if abs(offset - middle) > CLOCK_SECONDS
    ]


def _odd(nodes: Sequence[NodeFacts], package: str) -> tuple[str, list[NodeFacts]]:
    """The version that most nodes have, on a tie that of the first node, and the nodes with another one."""
    common = Counter(node.versions.get(package, "none") for node in nodes).most_common(1)[0][0]
    return common, [node for node in nodes if node.versions.get(package, "none") != common]


def _others(nodes: Sequence[NodeFacts], odd: Sequence[NodeFacts]) -> str:
    alike = [node for node in nodes if node not in odd]
    return f"node {alike[0].name}" if len(alike) == 1 else f"{len(alike)} other nodes"


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
        store.set(f"facts {here}", json.dumps(asdict(facts or facts_here(here, run_dir))))
        store.set(f"rank {here}", str(dist.get_rank()))
    node_facts = _agree(report, store, nodes)
    leaders = [int(store.get(f"rank {node}")) for node in range(nodes)]
    own = here if is_leader else None
    clocks, links = node_links.clock_offset(leaders, own), node_links.measure(leaders, own, device)
    if is_leader:
        store.set(f"links {here}", json.dumps([asdict(link) for link in links]))
    if report.rank == 0:
        all_links = [Link(**link) for node in range(nodes) for link in _read(store, f"links {node}")]
        _report(report, node_facts, clocks, all_links, time.perf_counter() - began)


def _agree(report: Report, store: Any, nodes: int) -> list[NodeFacts]:
    """On rank 0 the facts of all nodes; returns on all ranks once rank 0 has found that their versions agree."""
    if report.rank:
        if store.get("verdict") != _OK:  # rank 0 reports the refusal, and this rank says nothing of its own
            time.sleep(_REPORT_SECONDS)  # a machine that ends first ends the others
            os._exit(1)
        return []
    node_facts = [NodeFacts(**_read(store, f"facts {node}")) for node in range(nodes)]
    refused = refusal(node_facts)
    if refused:
        report.for_run(NodeFault(machine=refused.machine, node=refused.node, message=refused.problem.sentence))
        store.set("verdict", "refused")
        raise refused
    store.set("verdict", _OK)
    return node_facts


def _read(store: Any, key: str) -> Any:
    store.wait([key], _PATIENCE)
    return json.loads(store.get(key))


def _report(
    report: Report, nodes: list[NodeFacts], clocks: dict[int, float], links: list[Link], seconds: float
) -> None:
    names = {node.machine: node.name for node in nodes}
    for message in (*node_warnings(nodes, clocks), *node_links.warnings(links, names)):
        report.warn(message)
    slowest = min(links, key=lambda link: link.bandwidth)
    speed = f"{slowest.bandwidth / 1e6:,.0f} MB/s, {slowest.latency * 1000:.2f} ms"
    pair = f"{names[slowest.first]} and {names[slowest.second]}"
    versions = ", ".join(f"{package} {value}" for package, value in sorted(nodes[0].versions.items()))
    report.note(f"Checked {len(nodes)} nodes in {seconds:.1f} s: {versions}; slowest pair {pair} with {speed}.")
