"""benchmarks.scale: a small simulated cluster, its stand-in for Slurm's commands, and workers that compete for runs."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest
from patience import eventually
from slurm import cluster  # noqa: F401 - a fixture

from benchmarks.scale.cluster import formula, report
from benchmarks.scale.cluster.controller import Controller
from benchmarks.scale.cluster.parameters import Parameters, RunClass
from benchmarks.scale.cluster.programs import installed
from benchmarks.scale.cluster.simulation import simulate
from benchmarks.scale.cluster.stand_in import StandIn, compressed, expanded
from benchmarks.scale.cluster.timeline import START, Timeline
from benchmarks.scale.cluster.training import Training
from benchmarks.scale.limits import queueing
from benchmarks.slurm_cluster import SlurmCluster
from worker.engines.slurm import jobs
from worker.engines.slurm.cluster import SlurmError, call, pools
from worker.settings import get_settings

SMALL = Parameters(
    nodes=20, days=0.2, seed=3, failures=2500.0, repair_seconds=1800.0, mix=(RunClass(6, 2, 0.3), RunClass(2, 3, 0.2))
)
RUN = "abc123def456"
SQUEUE = ["squeue", "--user=somebody", "--states=all", "--noheader", f"--format={jobs.FORMAT}"]


@pytest.mark.slow
def test_a_small_cluster_with_many_failures_loses_and_doubles_nothing() -> None:
    found = report.document(SMALL, simulate(SMALL))
    assert (found["runs_lost"], found["runs_doubled"], found["damage"]) == (0, 0, [])
    assert found["all"]["failures"] > 10
    assert {name for name, hours in found["all"]["node_hours"].items() if hours <= 0} == set()
    for row in found["classes"]:
        assert row["ratio"] == pytest.approx(row["formula_ratio"], abs=0.04)
    assert report.table(found).count("\n") > 10


def test_a_run_that_saves_no_checkpoint_between_failures_is_counted_as_lost() -> None:
    never = replace(SMALL, days=0.1, save_steps=10_000_000, max_attempts=2, mix=(RunClass(10, 1, 2.0),))
    found = report.document(never, simulate(never))
    assert found["runs_lost"] == 1


@pytest.fixture
def stand_in(home: object) -> Iterator[StandIn]:
    controller = Controller(Timeline(), 3, 300.0)
    stand_in = StandIn(controller)
    with installed(stand_in):
        yield stand_in


@pytest.mark.nightly
def test_the_stand_in_answers_as_slurm_does(cluster: SlurmCluster, home: object) -> None:  # noqa: F811
    timeline = Timeline()
    simulated = StandIn(Controller(timeline, 2, 300.0))
    expected = _answers(lambda argv, text="": _simulated(simulated, timeline, argv, text))
    try:
        assert _answers(lambda argv, text="": _slurm(cluster, argv, text), expected) == expected
    finally:
        cluster.cancel_all()


def test_the_engine_reads_the_programs_of_the_stand_in(stand_in: StandIn) -> None:
    name = jobs.name(get_settings(), RUN, 2)
    number = call(["sbatch", "--parsable", f"--job-name={name}", "--nodes=2", "--requeue"], text="#!/bin/sh\n").strip()
    (job,) = jobs.parse(call(SQUEUE), get_settings())
    assert (job.id, job.state, job.run_id, job.attempt, job.num_nodes) == (number, "RUNNING", RUN, 2, 2)
    assert (job.nodes, job.starts_at, job.partition) == ("n[1-2]", START, "batch")
    (pool,) = pools()
    assert (pool.name, pool.machines, pool.states) == ("batch", 3, {"allocated": 2, "idle": 1})
    with pytest.raises(SlurmError, match="Invalid partition name specified") as refused:
        call(["sbatch", "--parsable", "--partition=nowhere"], text="#!/bin/sh\n")
    assert not refused.value.unreachable


def test_lists_of_nodes_are_read_as_they_are_written() -> None:
    assert compressed([7, 1, 2, 3]) == "n[1-3,7]"
    assert list(expanded("n[1-3,7],n9")) == ["n1", "n2", "n3", "n7", "n9"]


def test_a_checkpoint_counts_once_it_is_written() -> None:
    training = Training(100, 400, replace(SMALL, save_steps=100, step_seconds=1, stall_seconds=5, write_seconds=20))
    assert [training.step(elapsed) for elapsed in (0, 99.5, 104, 106)] == [100, 199, 200, 201]
    assert [training.saved(elapsed) for elapsed in (104, 124, 126)] == [100, 100, 200]
    assert [training.writing(elapsed) for elapsed in (99, 101, 126)] == [None, 200, None]
    assert training.seconds == 300 + 3 * 5 + 20


def test_the_formula_is_best_near_youngs_interval() -> None:
    best = formula.best_interval(SMALL, 6)
    at = {factor: replace(SMALL, save_steps=round(best * factor / SMALL.step_seconds)) for factor in (0.3, 1.0, 3.0)}
    ratios = {factor: formula.share(parameters, 6, 86400) for factor, parameters in at.items()}
    assert ratios[1.0] > max(ratios[0.3], ratios[3.0])


def test_workers_that_compete_claim_each_run_once(database: str) -> None:
    queueing.fill(12)
    assert queueing.claimed_at_once(3, 12)[1] == 0
    queueing.empty()


def _answers(ask, expected=()) -> list[str]:
    """What the commands of the engine print about the same jobs, without times and without the numbers of jobs.

    Slurm's scheduler may take time to come to the expected states.
    """
    script = "#!/bin/sh\nsleep 60\n"

    def submit(nodes: int, *options: str) -> str:
        words = [
            "--parsable",
            f"--job-name=job{nodes}",
            f"--nodes={nodes}",
            "--ntasks-per-node=2",
            "--output=/dev/null",
        ]
        code, out, _ = ask(["sbatch", *words, "--requeue", *options], script)
        return out.strip() if code == 0 else f"refused {code}"

    first, second, held = submit(2), submit(1), submit(1, "--hold")
    names = {first: "first", second: "second", held: "held"}
    told = [submit(1, "--partition=nowhere")]

    def jobs_now() -> None:
        def as_expected() -> bool:
            lines = listed()
            return lines == list(expected[len(told) :][: len(lines)])

        if expected:
            with contextlib.suppress(AssertionError):  # the comparison at the end shows how they differ
                eventually(as_expected, every=0.1)
        told.extend(listed())

    def listed() -> list[str]:
        lines = []
        for line in sorted(ask(SQUEUE)[1].splitlines()):
            number, state, name, partition, count, nodes, start, reason = line.split("|", 7)
            if number in names:
                known = "a time" if start.isdigit() and int(start) else "no time"
                known = "" if reason in ("Resources", "None") else known  # Slurm's forecast may not be there yet
                lines.append("|".join([names[number], state, name, partition, count, nodes, known, reason]))
        return lines

    jobs_now()
    told.append(ask(["scontrol", "requeue", first])[1])
    jobs_now()
    told.append(str(ask(["scancel", "--name=job2", held])))
    ask(["scancel", "--name=job1", held])
    told += map(str, ask(["scancel", "--name=job1", "99999"]))
    jobs_now()
    told += map(str, ask(["scontrol", "requeue", "99999"]))
    told.append(ask(["scontrol", "show", "hostnames", "n[1-2],n7"])[1])
    states = ask(["sinfo", "--noheader", "--format=%P|%D|%T|%l|%G"])[1].splitlines()
    told += sorted(line for line in states if line.startswith("batch"))
    return told


def _slurm(cluster: SlurmCluster, argv: list[str], text: str) -> tuple[int, str, str]:  # noqa: F811
    environment = os.environ | cluster.environment | {"SLURM_TIME_FORMAT": "%s"}
    words = [word for word in argv if not word.startswith("--user=")]
    words += ["--exclusive"] if argv[0] == "sbatch" else []
    done = subprocess.run(words, input=text, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def _simulated(stand_in: StandIn, timeline: Timeline, argv: list[str], text: str) -> tuple[int, str, str]:
    answer = stand_in.run(argv, text)
    timeline.run(lambda: False, timeline.now + 1)
    return answer.code, answer.out, answer.error
