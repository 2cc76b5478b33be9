"""A machine that ended two attempts of runs on several machines is put aside, unless it is needed."""

from pathlib import Path

import nvml
import pytest
from machines import gpu, machine
from paths import ROOT
from subtest_table import table

from training.config.choices import Strategy
from training.config.run_config import RunConfig
from training.errors import UserError
from training.run_folder.events import Failed, NodeFault
from worker.machine import free_devices
from worker.machine.process_identity import hostname
from worker.settings import get_settings
from worker.store import claims, history, machines, runs
from worker.store import database as db
from worker.store.tables import Run, Status
from worker.supervision import closing
from worker.supervision.outcome import Ending, Verdict, judge, killed_on
from worker.supervision.report_reader import AttemptProgress

pytestmark = pytest.mark.usefixtures("database")

HOST = hostname()
TORCHRUN = """\
[beta] Root Cause (first observed failure):
[beta] [0]:
[beta]   time      : 2026-03-01_10:00:00
[beta]   host      : beta.cluster
[beta]   rank      : 1 (local_rank: 0)
[beta]   exitcode  : {code} (pid: 4242)
[beta]   traceback : Signal 9 (SIGKILL) received by PID 4242"""


def lose(host: str, *, times: int = 1, devices: tuple[str, ...] = ("a/cpu", "b/cpu"), **settings: object) -> Run:
    """A run on two machines whose attempts end by a fault of `host`."""
    config = {"model": "m", "data": "d", "strategy": "ddp", "num_processes": 2, "num_machines": 2} | settings
    with db.write() as session:
        run = runs.create(session=session, config=RunConfig.model_validate(config), dataset_id=None, name="run")
    for _ in range(times):
        with db.write() as session:
            run = claims.claim(session=session, run_id=run.id, owner="a:1:1", devices=list(devices), lease_seconds=60)
            assert run is not None
            verdict = Verdict(Status.FAILED, f"Lost {host}.", {"message": "lost"}, retry=True, machine=host)
            closing.close(session=session, run=run, verdict=verdict, max_attempts=9)
    return run


def put_aside() -> set[str]:
    with db.read() as session:
        return machines.cordoned(session=session)


def warnings(run: Run) -> list[str]:
    with db.read() as session:
        return [one.message for one in history.events(session=session, run_id=run.id) if one.kind == "put_aside"]


def test_the_second_failure_puts_a_machine_aside_and_a_user_takes_it_back() -> None:
    machine("a"), machine("c")
    assert put_aside() == set() and warnings(lose("b")) == []
    (message,) = warnings(lose("b"))
    assert put_aside() == {"b"}
    assert "Machine b ended 2 attempts within 24 h, the latest: Lost b. It is put aside" in message
    with db.write() as session:
        machines.uncordon(session=session, host="b")
    assert put_aside() == set() and warnings(lose("b")) == []  # its failures are forgotten
    with pytest.raises(UserError, match="is not put aside"), db.write() as session:
        machines.uncordon(session=session, host="b")


def test_a_machine_that_the_run_needs_is_not_put_aside() -> None:
    machine("a"), machine("b")
    (message,) = warnings(lose("b", times=2))
    assert put_aside() == set()
    assert "It is not put aside, because only 1 other machines are known and the run needs 2." in message
    lose("b", min_machines=1)
    assert put_aside() == {"b"}


def test_failures_of_runs_on_one_machine_do_not_count() -> None:
    machine("a"), machine("c")
    lose("b", times=3, num_machines=1, num_processes=1, strategy="single")
    assert put_aside() == set()


def test_old_failures_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    machine("a"), machine("c")
    lose("b")
    monkeypatch.setenv("LATHE_PUT_ASIDE_HOURS", "1e-9")
    get_settings.cache_clear()
    lose("b")
    assert put_aside() == set()


def test_nodes_of_slurm_are_counted_by_its_partition() -> None:
    nodes = ("n1/slurm:7", "n2/slurm:7")
    pool = {"name": "gpu", "machines": 4, "states": {"idle": 3, "down*": 1}, "is_default": True}
    with db.write() as session:
        machines.report_engine(session=session, name="slurm", capacity={"engine": "slurm", "pools": [pool]})
    lose("n2", times=2, devices=nodes)
    assert put_aside() == {"n2"}
    lose("n1", times=2, devices=nodes)
    assert put_aside() == {"n2"}


def fails(cause: str, *, leased: int, rank: int | None) -> Run:
    """A run on the first GPUs of this machine whose first attempt ended so."""
    config = RunConfig(
        model="m", data="d", strategy=Strategy.DDP if leased > 1 else Strategy.SINGLE, num_processes=leased
    )
    with db.write() as session:
        run = runs.create(session=session, config=config, dataset_id=None, name="run")
        taken = [f"{HOST}/cuda:{index}" for index in range(leased)]
        claimed = claims.claim(session=session, run_id=run.id, owner="a:1:1", devices=taken, lease_seconds=60)
        assert claimed is not None
        error = {"message": "It broke.", "rank": rank, "diagnosis": {"cause": cause}}
        verdict = Verdict(Status.FAILED, "It broke.", error)
        closing.close(session=session, run=claimed, verdict=verdict, max_attempts=3)
        return runs.get(session=session, run_id=run.id)


@nvml.needs_compiler
@table(
    ("cause", "leased", "rank", "expected"),
    [
        ("gpu_hardware", 1, None, {0}),
        ("gpu_hardware", 2, 1, {1}),
        ("driver_mismatch", 2, 0, {0, 1}),
        ("gpu_hardware", 2, None, set()),  # nobody knows which
        ("gpu_hardware", 4, 0, set()),  # too few would be left
        ("out_of_memory", 1, 0, set()),
    ],
)
def test_a_broken_gpu_is_put_aside_and_its_run_is_tried_on_another(
    database: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    cause: str, leased: int, rank: int | None, expected: set[int],
) -> None:  # fmt: skip
    nvml.install(monkeypatch, tmp_path / "nvml", *(nvml.gpu(number) for number in range(4)))
    machine(HOST, devices=[gpu(HOST, number) for number in range(4)])
    run = fails(cause, leased=leased, rank=rank)
    names = {f"{HOST}/cuda:{number}" for number in expected}
    assert put_aside() == names
    assert run.status is (Status.QUEUED if expected else Status.FAILED)
    assert len(warnings(run)) == bool(expected)
    with db.write() as session:
        assert not names & {*free_devices.free(session=session)}
        for name in names:
            machines.uncordon(session=session, host=name)
        assert names <= {*free_devices.free(session=session)}
        claims.finish(session=session, run_id=run.id, attempt=run.attempt, status=Status.STOPPED)
        if expected:
            runs.request_stop(session=session, run_id=run.id)


def test_the_machine_on_which_a_rank_was_killed_is_read_from_the_launcher_s_report() -> None:
    other = TORCHRUN.format(code=1).replace("beta", "alpha")
    assert killed_on([*TORCHRUN.format(code=-9).splitlines(), *other.splitlines()]) == "beta.cluster"
    assert killed_on(other.splitlines()) == ""
    real = (ROOT / "tests" / "logs" / "host_out_of_memory.log").read_text(encoding="utf-8")
    assert killed_on(real.splitlines()) == "node-1"
    assert killed_on(["slurmstepd: error: *** STEP 7.0 FAILED (non-zero exit code or node failure) ***"]) == ""
    assert killed_on(["srun: error: Node failure on n3"]) == "n3"


def test_a_node_that_the_check_refuses_is_tried_again_and_named() -> None:
    failed = Failed(rank=0, error="NodeRefused", message="torch on node b", fix="Install it.", expected=True)
    seen = AttemptProgress(failures=[failed], node_fault=NodeFault(machine=1, node="b", message="torch"))
    verdict = judge(seen, Ending(exit_code=1))
    assert (verdict.status, verdict.retry, verdict.machine) == (Status.FAILED, True, "b")
    assert verdict.error is not None and verdict.error["fix"] == "Install it."
