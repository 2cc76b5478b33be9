"""benchmarks.chaos: a short session leaves no damage, and its checks detect each kind of damage."""

import json
import os
import shutil
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import patience
import pytest
from paths import ROOT

from benchmarks.chaos import ranks
from benchmarks.chaos.faults import plan
from benchmarks.chaos.findings import Findings, check_leftovers, check_runs
from training.config.run_config import RunConfig
from training.run_folder.events import EventWriter, Metrics, decode
from training.run_folder.paths import ARCHIVE_FILE
from worker.runs import archive
from worker.settings import get_settings
from worker.store import claims, database, history, runs
from worker.store.tables import DeviceLease, Metric, Run, Status

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
    archive.pack(folder / "adapter", folder / ARCHIVE_FILE, lambda: None)
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


def test_a_step_with_another_value_counts_as_lost(finished: tuple[str, Path]) -> None:
    with database.write() as session:
        session.get_one(Metric, (finished[0], "loss", -1, 5)).value = 0.5
    assert "steps with another value [('loss', 5)]" in check().lost[0]


def test_a_different_result_counts_as_lost(finished: tuple[str, Path]) -> None:
    (finished[1] / "adapter" / ranks.RESULT_FILE).write_text("another")
    assert "differs from that of an undisturbed run" in check().lost[0]


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
    (folder / "checkpoints" / "checkpoint-11").mkdir()
    with database.write() as session:
        session.add(DeviceLease(device="host/cpu", run_id=run_id, attempt=1))
    assert len(check().left_over) == 3
