"""Random faults against a whole installation: what they must not do, and that it would be seen if they did."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from benchmarks import chaos_ranks
from benchmarks.chaos_faults import plan
from benchmarks.chaos_findings import Findings, look_at_runs, look_for_rest
from training.config import RunConfig
from training.events import EventWriter, Metrics, decode
from worker import archive, database, history, runs
from worker.models import DeviceLease, Metric, Run, Status
from worker.settings import get_settings

ROOT = Path(__file__).parents[1]
STEPS = 12


def test_nothing_is_lost_doubled_or_left_over_in_twelve_faults() -> None:
    options = ["--faults", "12", "--seed", "12", "--workers", "2", "--pause", "1", "--light", "--json"]
    argv = [sys.executable, "-m", "benchmarks.chaos", *options]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.stdout, ended.stderr
    report = json.loads(ended.stdout)
    assert report["found"] == [] and report["clean"] and ended.returncode == 0, ended.stdout + ended.stderr
    assert report["faults"] + report["faults_without_victim"] == 12
    assert report["runs"] >= 2


def test_the_same_seed_makes_the_same_faults_and_another_one_others() -> None:
    first, again, other = (list(islice(plan(seed, 3.0), 50)) for seed in (1, 1, 2))
    assert first == again != other


@pytest.fixture
def finished(home: Path) -> tuple[str, Path]:
    """A light run that has trained and is stored, without any fault: its id and its folder."""
    config = RunConfig(name="light-1", model="m", data="d", max_steps=STEPS, save_steps=5, seed=7)
    config = config.model_copy(update={"num_processes": 2})
    with database.write() as session:
        run = runs.create(session=session, config=config, dataset_id=None)
        runs.claim(session=session, run_id=run.id, owner="host:1:1", devices=["host/cpu"], lease_seconds=60)
    folder = get_settings().runs_dir / run.id
    folder.mkdir()
    (folder / "config.json").write_text(config.model_dump_json())
    argv = [sys.executable, chaos_ranks.__file__, "launch", str(folder)]
    subprocess.run(argv, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)
    lines = (folder / "events.jsonl").read_bytes().splitlines()
    records = [record for record in map(decode, lines) if record]
    with database.write() as session:
        history.apply(session=session, run_id=run.id, attempt=1, events=records, new_offset=1)
        assert runs.finish(session=session, run_id=run.id, attempt=1, status=Status.FINISHED)
    archive.pack(folder / "adapter", folder / archive.ARCHIVE_FILE, lambda: None)
    return run.id, folder


def look() -> Findings:
    found = Findings()
    look_for_rest(get_settings(), list, found)
    look_at_runs(get_settings().runs_dir, set(), {}, found)
    return found


def test_an_undisturbed_run_is_found_to_be_right(finished: tuple[str, Path]) -> None:
    found = look()
    assert found.clean, found
    assert found.effective_percent > 0


def test_a_step_that_is_not_stored_is_found_to_be_lost(finished: tuple[str, Path]) -> None:
    with database.write() as session:
        session.delete(session.get_one(Metric, (finished[0], "loss", -1, 5)))
    assert "steps missing [5]" in look().lost[0]


def test_a_step_with_another_loss_is_found(finished: tuple[str, Path]) -> None:
    with database.write() as session:
        session.get_one(Metric, (finished[0], "loss", -1, 5)).value = 0.5
    assert "of another loss [5]" in look().lost[0]


def test_a_result_that_is_not_an_undisturbed_runs_is_found(finished: tuple[str, Path]) -> None:
    (finished[1] / "adapter" / chaos_ranks.RESULT_FILE).write_text("another")
    assert "not that of an undisturbed run" in look().lost[0]


def test_a_run_that_did_not_finish_and_one_that_is_gone_are_found_to_be_lost(finished: tuple[str, Path]) -> None:
    with database.write() as session:
        session.get_one(Run, finished[0]).status = Status.FAILED
    found = Findings()
    look_at_runs(get_settings().runs_dir, {"gone"}, {}, found)
    assert len(found.lost) == 2 and "failed" in found.lost[1] and "gone" in found.lost[0]


def test_a_second_trainer_is_seen_by_the_first_ones_lock(finished: tuple[str, Path]) -> None:
    lock = chaos_ranks.hold_alone(finished[1], 0)
    assert not look().doubled
    chaos_ranks.hold_alone(finished[1], 0)
    os.close(lock)
    assert "another process trains in its place" in look().doubled[0]


def test_a_step_recorded_twice_in_one_attempt_is_found_to_be_doubled(finished: tuple[str, Path]) -> None:
    last = Metrics(step=STEPS, values={"loss": 0.1})
    with EventWriter(finished[1] / "events.jsonl") as writer:
        for step in (STEPS, STEPS - 1):
            writer.write(replace(last, step=step))
    assert f"step {STEPS} follows step {STEPS}" in look().doubled[0]


def test_what_is_left_of_files_and_leases_is_found(finished: tuple[str, Path]) -> None:
    run_id, folder = finished
    (folder / "adapter.zip.part").touch()
    (folder / "checkpoints" / "checkpoint-11").mkdir()
    with database.write() as session:
        session.add(DeviceLease(device="host/cpu", run_id=run_id, attempt=1))
    assert len(look().left_over) == 3
