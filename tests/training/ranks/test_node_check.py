"""Nodes are compared before a run on several of them trains, by real ranks over gloo."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import warm
from paths import ROOT
from patience import run

from training.ranks import node_check, node_links
from training.ranks.node_check import NodeFacts
from training.ranks.node_links import Link
from training.run_folder.events import Event, Failed, NodeFault, Note, decode

GIB = 2**30
VERSIONS = {"torch": "2.13.0", "Lathe": "0.2.0", "Python": "3.12.1"}
NODES = [NodeFacts(number, name, VERSIONS, 64 * GIB, 400 * GIB) for number, name in enumerate(("a", "b", "c"))]

PROGRAM = """
import json, os, sys
from pathlib import Path
import torch, torch.distributed as dist
from training.ranks.node_check import check_nodes
from training.ranks.node_check import NodeFacts
from training.reports.report import Report

def check(folder, rank, versions):
    os.environ |= {"GROUP_WORLD_SIZE": "2", "GROUP_RANK": str(rank), "LOCAL_RANK": "0"}
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    report = Report(folder, rank)
    try:
        facts = NodeFacts(rank, "ab"[rank], {"torch": versions[rank]}, 2**36, 2**36)
        check_nodes(report, folder, torch.device("cpu"), facts)
    except Exception as error:
        report.failed(error)
        return 3
    return 0

def exit_codes(folder, versions):
    folder.mkdir()
    ranks = []
    for rank in range(2):
        ranks.append(os.fork())
        if not ranks[-1]:
            os._exit(check(folder, rank, versions))
    return [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]

print(json.dumps({version: exit_codes(Path(sys.argv[1], version), ["2.13.0", version]) for version in sys.argv[2:]}))
"""
Checked = tuple[list[int], list[Event]]


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Checked]:
    """By the version of torch on node b: the exit codes of two ranks on nodes a and b, and the records that they wrote."""
    folder = tmp_path_factory.mktemp("nodes")
    with pytest.MonkeyPatch.context() as patched:
        warm.use_python(patched)
        done = run([sys.executable, "-c", PROGRAM, str(folder), "2.13.0", "2.12.0"], cwd=ROOT, text=True, check=True)
    return {version: (codes, records(folder / version)) for version, codes in json.loads(done.stdout).items()}


def records(folder: Path) -> list[Event]:
    return [event for line in (folder / "events.jsonl").read_bytes().splitlines() if (event := decode(line))]


def test_equal_nodes_train_and_the_slowest_pair_is_reported(checked: dict[str, Checked]) -> None:
    codes, events = checked["2.13.0"]
    assert codes == [0, 0]
    notes = [event.message for event in events if isinstance(event, Note) and event.level == "info"]
    assert len(notes) == 1 and "torch 2.13.0; slowest pair a and b" in notes[0]


def test_another_version_of_torch_is_refused_with_the_node_s_name_by_one_rank(checked: dict[str, Checked]) -> None:
    codes, events = checked["2.12.0"]
    assert codes == [3, 1]
    fault, failed = events
    assert isinstance(fault, NodeFault) and (fault.machine, fault.node) == (1, "b")
    assert isinstance(failed, Failed) and failed.expected
    assert failed.message == "torch on node b (given: '2.12.0'): differs from 2.13.0 on node a."
    assert "Install torch 2.13.0 on node b" in failed.fix


def test_the_node_that_differs_from_most_is_named() -> None:
    other = replace(NODES[0], versions=VERSIONS | {"Lathe": "0.1.0"})
    refused = node_check.refusal([other, *NODES[1:]])
    assert refused is not None and refused.node == "a" and "2 other nodes" in refused.message
    assert node_check.refusal(NODES) is None


@pytest.mark.parametrize(
    ("node", "clocks", "words"),
    [
        ({"versions": VERSIONS | {"Python": "3.11.2"}}, {}, ["Node b has Python 3.11.2", "3.12.1"]),
        ({"memory_free": 3 * GIB}, {}, ["Node b has 3.0 GiB of free host memory", "64.0 GiB"]),
        ({"disk_free": GIB // 2}, {}, ["Node b has 512 MiB of free disk space"]),
        ({}, {1: -12.5, 2: 0.1}, ["The clock of node b is 12.5 s behind the others"]),
    ],
    ids=["Python", "memory", "disk", "clock"],
)
def test_a_difference_is_a_warning_with_the_value(node: dict, clocks: dict, words: list[str]) -> None:
    found = node_check.node_warnings([NODES[0], replace(NODES[1], **node), NODES[2]], clocks)
    assert len(found) == 1 and all(word in found[0] for word in words)


def test_a_pair_that_is_slower_than_the_others_is_a_warning() -> None:
    links = [Link(0, 1, 1e-4, 9e9), Link(0, 2, 1e-4, 9e9), Link(1, 2, 1e-4, 1e9)]
    (found,) = node_links.warnings(links, {0: "a", 1: "b", 2: "c"})
    assert "between nodes b and c is slow: 1,000 MB/s" in found
    assert node_links.warnings(links[:2], {0: "a", 1: "b", 2: "c"}) == []


def test_every_pair_of_few_nodes_and_the_neighbors_of_many_are_measured() -> None:
    assert sorted(node_links.pairs(4)) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    assert sorted(node_links.pairs(20)) == [(first, first + 1) for first in range(19)]
