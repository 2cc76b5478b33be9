"""benchmarks.chaos: a short session leaves no damage, faults strike where they should, checks detect each kind of damage."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import patience
import pytest
from paths import ROOT
from sqlmodel import select

from benchmarks.chaos import phases, ranks
from benchmarks.chaos.faults import RAREST, TWO, plan
from benchmarks.chaos.findings import (
    Findings,
    check_causes,
    check_leftovers,
    check_runs,
    check_uploads,
    check_work,
)
from benchmarks.chaos.surroundings import Load, SlowDisk
from tests.stand_in_hub import Received
from training.config.run_config import RunConfig
from training.reports.report import Report
from training.run_folder.events import EventWriter, Finished, Metrics, Resumed, decode
from training.run_folder.paths import ARCHIVE_FILE
from worker.results import packing
from worker.settings import get_settings
from worker.store import claims, database, history, runs
from worker.store.tables import Attempt, Build, DeviceLease, Evaluation, Metric, Run, ServedModel, ServedState, Status

STEPS = 12


@pytest.mark.slow
@pytest.mark.nightly
def test_eight_faults_leave_nothing_lost_doubled_or_left_over() -> None:
    options = ["--faults", "8", "--seed", "12", "--workers", "2", "--pause", "1", "--light", "--json"]
    argv = [sys.executable, "-m", "benchmarks.chaos", *options]
    completed = patience.run(argv, cwd=ROOT, text=True)
    assert completed.stdout, completed.stderr
    report = json.loads(completed.stdout)
    assert report["found"] == [] and report["clean"] and completed.returncode == 0, completed.stdout + completed.stderr
    assert report["faults"] + report["faults_without_victim"] == 8
    assert report["runs"] >= 2


def test_a_seed_determines_the_faults() -> None:
    first, again, other = (list(islice(plan(seed, 3.0), 50)) for seed in (1, 1, 2))
    assert first == again != other


CONFIG = RunConfig(name="light-1", model="m", data="d", max_steps=STEPS, save_steps=5, seed=7).model_copy(
    update={"num_processes": 2}
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished light run without faults."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "config.json").write_text(CONFIG.model_dump_json())
    argv = [sys.executable, ranks.__file__, "launch", str(folder)]
    patience.run(argv, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)
    return folder


@pytest.fixture
def finished(home: Path, trained: Path) -> tuple[str, Path]:
    """Id and folder of a finished light run without faults, which the test may change."""
    with database.write() as session:
        run = runs.create(session=session, config=CONFIG, dataset_id=None)
        claims.claim(session=session, run_id=run.id, owner="host:1:1", devices=["host/cpu"], lease_seconds=60)
    folder = get_settings().runs_dir / run.id
    shutil.copytree(trained, folder)
    lines = (folder / "events.jsonl").read_bytes().splitlines()
    records = [record for record in map(decode, lines) if record]
    with database.write() as session:
        history.apply(session=session, run_id=run.id, attempt=1, events=records, new_offset=1)
        assert claims.finish(session=session, run_id=run.id, attempt=1, status=Status.FINISHED)
    packing.pack(folder / "adapter", folder / ARCHIVE_FILE)
    return run.id, folder


def test_a_rank_that_is_asked_to_stop_while_it_waits_for_the_other_stops_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rank = ranks.Rank.__new__(ranks.Rank)
    rank._asked = False

    def exchange(message: bytes) -> bytes:
        rank._on_terminate()
        return message

    monkeypatch.setattr(rank, "exchange", exchange)
    assert [rank.agree("state") for _ in range(2)] == [False, True]


def check() -> Findings:
    findings = Findings()
    check_leftovers(get_settings(), list, findings)
    check_runs(get_settings().runs_dir, set(), {}, findings)
    return findings


def test_an_undisturbed_run_has_no_findings(finished: tuple[str, Path]) -> None:
    findings = check()
    assert findings.clean, findings
    assert findings.effective_percent > 0


def test_a_missing_step_counts_as_lost(finished: tuple[str, Path]) -> None:
    with database.write() as session:
        session.delete(session.get_one(Metric, (finished[0], "loss", -1, 5)))
    assert "missing steps [('loss', 5)]" in check().lost[0]


def test_a_step_with_another_value_counts_as_different(finished: tuple[str, Path]) -> None:
    with database.write() as session:
        session.get_one(Metric, (finished[0], "loss", -1, 5)).value = 0.5
    assert "steps with another value [('loss', 5)]" in check().different[0]


def test_another_result_counts_as_different(finished: tuple[str, Path]) -> None:
    (finished[1] / "adapter" / ranks.RESULT_FILE).write_text("another")
    assert "differs from that of an undisturbed run" in check().different[0]


def test_unfinished_and_missing_runs_count_as_lost(finished: tuple[str, Path]) -> None:
    with database.write() as session:
        session.get_one(Run, finished[0]).status = Status.FAILED
    findings = Findings()
    check_runs(get_settings().runs_dir, {"gone"}, {}, findings)
    assert len(findings.lost) == 2 and "failed" in findings.lost[1] and "gone" in findings.lost[0]


def test_a_second_trainer_counts_as_doubled(finished: tuple[str, Path]) -> None:
    lock = ranks.hold_alone(finished[1], 0)
    assert not check().doubled
    ranks.hold_alone(finished[1], 0)
    os.close(lock)
    assert "another process trains the same rank" in check().doubled[0]


def test_a_step_recorded_twice_in_one_attempt_counts_as_doubled(finished: tuple[str, Path]) -> None:
    last = Metrics(step=STEPS, values={"loss": 0.1})
    writer = EventWriter(finished[1] / "events.jsonl")
    for step in (STEPS, STEPS - 1):
        writer.write(replace(last, step=step))
    assert f"step {STEPS} follows step {STEPS}" in check().doubled[0]


def test_unfinished_files_and_device_leases_count_as_left_over(finished: tuple[str, Path]) -> None:
    run_id, folder = finished
    (folder / "adapter.zip.part").touch()
    (folder / "adapter.partial").mkdir()
    (folder / "checkpoints" / "checkpoint-11").mkdir()
    with database.write() as session:
        session.add(DeviceLease(device="host/cpu", run_id=run_id, attempt=1))
        session.add(ServedModel(id="s", models=[run_id], state=ServedState.READY, created_at=0.0))
    assert len(check().left_over) == 5


def test_a_damaged_archive_counts_as_lost(finished: tuple[str, Path]) -> None:
    archived = finished[1] / ARCHIVE_FILE
    archived.write_bytes(archived.read_bytes()[:50])
    assert "its result archive is damaged" in check().lost[0]


def test_weights_other_than_those_of_an_undisturbed_run_count_as_different(finished: tuple[str, Path]) -> None:
    run_id, folder = finished
    (folder / "adapter" / "adapter_model.safetensors").write_bytes(b"weights")
    like = folder.with_name("undisturbed")
    shutil.copytree(folder, like)
    (like / "adapter" / "adapter_model.safetensors").write_bytes(b"other weights")
    findings = Findings()
    check_runs(folder.parent, set(), {"light": like.name}, findings)
    assert findings.different == [f"{run_id} (light-1): adapter/adapter_model.safetensors differs"]


def test_an_upload_that_is_missing_or_differs_is_found(finished: tuple[str, Path]) -> None:
    run_id, folder = finished
    (folder / "adapter" / "adapter_model.safetensors").write_bytes(b"weights")
    with database.write() as session:
        run = session.get_one(Run, run_id)
        run.config = run.config | {"push_to_hub": "chaos/light-1"}
    findings = Findings()
    check_uploads(folder.parent, Received(), findings)
    assert "was not pushed" in findings.lost[0]
    check_uploads(folder.parent, Received({"chaos/light-1": {"adapter_model.safetensors": b"others"}}), findings)
    assert "differs" in findings.different[0]


def _named(reason: str, killed: set[tuple[str, int]]) -> list[str]:
    with database.write() as session:
        for attempt in session.exec(select(Attempt)):
            attempt.reason = reason
    findings = Findings()
    check_causes(killed, [], findings)
    return findings.misnamed


def test_causes_that_are_not_the_real_ones_are_misnamed(finished: tuple[str, Path]) -> None:
    killed = "A training process was killed by SIGKILL in the phase saving."
    assert not _named(killed, {(finished[0], 1)})
    assert "the session killed no process of it" in _named(killed, set())[0]
    assert len(_named("The machine is out of memory (host RAM).", {(finished[0], 1)})) == 1


def test_work_that_does_not_end_hangs_and_failed_work_is_lost(finished: tuple[str, Path]) -> None:
    shared = {"run_id": finished[0], "owner": "me", "created_at": 0.0}
    with database.write() as session:
        session.add(Evaluation(id="e", status=Status.RUNNING, phase="answering", request={}, **shared))
        session.add(Build(id="b", status=Status.FAILED, form="gguf", error={"message": "It broke."}, **shared))
    findings = Findings()
    check_work(findings)
    assert findings.hanging == ["evaluation e: running, answering"]
    assert findings.lost == ["build b: failed, It broke."]


def test_most_faults_of_runs_wait_for_the_end_or_a_rare_phase() -> None:
    planned = list(islice(plan(1, 3.0, load=True), 1000))
    of_pairs = [fault for fault in planned if fault.subject == TWO]
    assert len(of_pairs) > 500
    assert sum(fault.moment == phases.END for fault in of_pairs) > 0.45 * len(of_pairs)
    assert {RAREST, "now"} < {fault.moment for fault in of_pairs}
    assert not {fault.subject for fault in islice(plan(1, 3.0, real=False), 200)} - {"", "light ranks"}


def test_phases_are_found_in_the_code(tmp_path: Path) -> None:
    text = """
from training import operator_cache
def run(report, phase):
    report.enter("one")
    with report.during("two"):
        report.enter(phase)
    report.enter(operator_cache.PHASE)
"""
    (tmp_path / "program.py").write_text(text)
    assert phases.declared(tmp_path) == {"one", "two", "compiling DeepSpeed operators"}
    assert {"training", "verifying", "pushing"} < phases.declared()


@pytest.fixture
def watch(tmp_path: Path) -> phases.Watch:
    """A watched run of 5 steps, whose records do not exist yet."""
    return phases.Watch("run", "ddp-1", 5, tmp_path / "events.jsonl")


def _moment(watch: phases.Watch) -> tuple[str, bool]:
    watch.read(phases.Durations())
    return watch.phase, watch.elapsed(phases.END) is not None


def test_a_run_is_at_its_end_after_its_last_step_of_this_attempt(watch: phases.Watch) -> None:
    report = Report(watch.path.parent, 0)
    assert _moment(watch) == ("starting", False)
    report.started("cpu")
    report.enter("training")
    report.for_run(Metrics(step=5, values={"loss": 1.0}))
    assert _moment(watch) == ("training", True)
    report.enter("verifying")
    assert _moment(watch) == ("verifying", True)
    report.for_run(Finished(outcome="finished", step=5, summary={}))
    assert _moment(watch) == (phases.CLOSING, True)
    report.started("cpu")  # the next attempt, which resumes from the last step
    report.enter("loading model")
    report.for_run(Resumed(step=5, path="checkpoints/checkpoint-5", rejected=[]))
    assert _moment(watch) == ("loading model", False)
    report.enter("training")
    assert _moment(watch) == ("training", True)


def test_a_slow_disk_delays_each_fsync(tmp_path: Path) -> None:
    if not shutil.which("cc"):
        pytest.skip("needs a C compiler")
    disk = SlowDisk(tmp_path)
    program = "import os, time; f = open('x', 'w'); t = time.monotonic(); os.fsync(f); print(time.monotonic() - t)"

    def seconds() -> float:
        environment = os.environ | disk.environment
        return float(subprocess.check_output([sys.executable, "-c", program], cwd=tmp_path, env=environment))

    disk.slow(0.2)
    assert seconds() >= 0.2
    disk.slow(0)
    assert not (tmp_path / "slow-disk").exists()


def test_a_load_is_processes_until_it_is_stopped() -> None:
    load, none = Load(1), Load(0)
    assert load.start() and not load.start() and not none.start()
    load.stop()
    assert load.start()
    load.stop()
