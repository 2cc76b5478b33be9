"""One attempt at a run under its supervisor: real processes, a real database, a stand-in for the training program."""

import json
import os
import signal
import sqlite3
import zipfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from patience import eventually
from sqlmodel import select
from supervised import ENDLESS, living, queue_run, supervise

from training.run_folder import checkpoints
from training.run_folder.events import EventWriter, Finished, Metrics, RankStarted
from training.run_folder.paths import checkpoints_dir
from training.run_folder.record import Lineage
from worker.settings import Settings, get_settings
from worker.store import database as db
from worker.store import runs
from worker.store.tables import Attempt, DeviceLease, Metric, Request, Run, Status
from worker.supervision.launcher import Launch
from worker.supervision.training_process import environment

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("home")]


def devices_in_use() -> list[str]:
    with db.read() as session:
        return list(session.exec(select(DeviceLease.device)))


def outcomes(run_id: str) -> list[str]:
    with db.read() as session:
        return list(session.exec(select(Attempt.outcome).where(Attempt.run_id == run_id).order_by(Attempt.number)))


def loss_steps(run_id: str) -> list[int]:
    with db.read() as session:
        losses = select(Metric.step).where(Metric.run_id == run_id, Metric.name == "loss").order_by(Metric.step)
        return list(session.exec(losses))


@contextmanager
def locked_database(home: Path) -> Iterator[None]:
    """Locks the database for writing."""
    with closing(sqlite3.connect(home / "lathe.db", timeout=3600, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield
        connection.execute("ROLLBACK")


def test_a_finished_run_has_its_summary_and_its_result_archive(database: str) -> None:
    with supervise(queue_run(steps=4, adapter_bytes=3_000_000)) as it:
        run = it.wait()
    assert (run.status, run.summary, run.step) == (Status.FINISHED, {"steps": 4}, 4)
    with zipfile.ZipFile(it.run_dir / "adapter.zip") as packed:
        assert [(entry.filename, entry.file_size) for entry in packed.infolist()] == [
            ("adapter_model.safetensors", 3_000_000)
        ]
    assert devices_in_use() == []
    assert outcomes(run.id) == ["finished"]
    assert Lineage.read(it.run_dir) == Lineage(run.id, "a run", attempts=1)


def test_a_user_error_fails_the_run_with_its_fix_and_is_not_retried() -> None:
    with supervise(queue_run(crash_at=2, how="expected")) as it:
        run = it.wait()
    assert run.status is Status.FAILED
    assert run.error is not None
    assert (run.error["message"], run.error["fix"], run.error["rank"]) == ("It cannot go on at 2.", "Mend it.", 0)


def test_a_run_that_is_killed_after_its_result_was_saved_keeps_it_and_does_not_train_again() -> None:
    run_id = queue_run(steps=4, ranks=2, crash_in="describing")
    with supervise(run_id) as it:
        run = it.wait()
        assert (run.status, run.has_result, run.summary["undone"].keys()) == (
            Status.QUEUED,
            True,
            {"describing"},
        )
        assert "Its result is saved. It continues in the phase describing." in it.told()
    with supervise(run_id) as it:
        run = it.wait()
    assert (run.status, run.summary, loss_steps(run_id)) == (Status.FINISHED, {"steps": 4}, [1, 2, 3, 4])
    assert (run.resumable, (it.run_dir / "adapter.zip").is_file()) == (False, True)
    assert [event.message for event in it.events() if event.kind == "phase"].count("training") == 1


def test_a_run_that_is_killed_too_often_after_its_result_was_saved_is_finished_and_resumes_there() -> None:
    run_id = queue_run(steps=2, crash_in="describing", always=True)
    for _ in range(3):
        with supervise(run_id) as it:
            run = it.wait()
    assert (run.status, run.attempt, run.undone) == (Status.FINISHED, 3, {"describing": "It was killed too often."})
    assert run.resumable and run.has_result and (it.run_dir / "adapter.zip").is_file()
    with db.write() as session:
        config = runs.resume(session=session, run_id=run_id).config
        session.get_one(Run, run_id).config = config | {"model": json.dumps({"steps": 2})}
    (it.run_dir / "stages.json").write_text(
        (it.run_dir / "stages.json").read_text().replace('"describing": 2', '"x": 2')
    )
    with supervise(run_id) as it:
        run = it.wait()
    assert (run.status, run.summary, loss_steps(run_id)) == (Status.FINISHED, {"steps": 2}, [1, 2])


def test_stop_after_the_result_was_saved_finishes_the_run() -> None:
    with supervise(queue_run(steps=2, hold="verifying"), leaving=0.2) as it:
        it.reaches("verifying")
        run = it.stopped()
        assert (run.status, run.undone.keys()) == (Status.FINISHED, {"describing"})
        assert "Its result is saved; no model card." in it.told()


def test_a_run_whose_result_cannot_be_packed_is_finished() -> None:
    with supervise(queue_run(steps=2, hold="exit"), exiting=3600) as it:
        it.writes(b'"finished"')
        (it.run_dir / "adapter.zip").mkdir()  # cannot be replaced
        (it.run_dir / "adapter.zip" / "a").touch()
        it.go()
        run = it.wait()
    assert (run.status, run.undone.keys()) == (Status.FINISHED, {"packing"})


@pytest.mark.parametrize("phase", ["loading model", "saving"])
def test_a_run_whose_rank_is_killed_resumes_from_its_checkpoint_and_finishes(phase: str) -> None:
    run_id = queue_run(steps=4, save_at=2, ranks=2, crash_rank=0, crash_in=phase)
    with supervise(run_id) as it:
        assert it.wait().status is Status.QUEUED
        assert f"SIGKILL in the phase {phase}" in it.told()
    with supervise(run_id) as it:
        run = it.wait()
    assert (run.status, run.attempt, loss_steps(run_id)) == (Status.FINISHED, 2, [1, 2, 3, 4])
    assert outcomes(run_id) == ["failed", "finished"]


def test_a_run_whose_launcher_is_killed_is_requeued_and_no_rank_trains_on() -> None:
    with supervise(queue_run(**ENDLESS, ranks=2)) as it:
        it.until(lambda run: run.step > 2)
        (launcher,) = set(living(it.run_id)) - set(it.ranks())
        launcher.kill()
        run = it.wait()
        assert (run.status, living(run.id)) == (Status.QUEUED, [])
        assert "It continues from the checkpoint of step 2." in it.told()


def test_an_error_before_the_first_step_is_not_retried_and_keeps_the_log() -> None:
    with supervise(queue_run(crash_in="loading model", how="exit")) as it:
        run = it.wait()
    assert run.status is Status.FAILED
    assert run.error is not None
    assert "exit code 1" in run.error["message"]


def test_a_run_that_keeps_crashing_fails_after_its_last_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATHE_MAX_ATTEMPTS", "2")
    get_settings.cache_clear()
    run_id = queue_run(crash_at=2, how="unexpected", always=True)
    with supervise(run_id) as it:
        assert it.wait().status is Status.QUEUED
    with supervise(run_id) as it:
        run = it.wait()
    assert run.status is Status.FAILED
    assert run.error is not None
    assert run.error["message"] == "It cannot go on at 2. All 2 attempts failed."


@pytest.mark.parametrize(
    ("behaviour", "phase"),
    [
        ({"slow_launch": 3600}, "starting"),
        ({"slow": "loading model"}, "loading model"),
        (ENDLESS, "training"),
        (ENDLESS | {"slow": "saving", "late": 0.5}, "saving"),
    ],
    ids=["starting", "loading", "training", "during a save slower than the grace"],
)
def test_a_run_stops_on_request(behaviour: dict[str, object], phase: str) -> None:
    with supervise(queue_run(**behaviour), leaving=0.1 if phase == "saving" else 3600, saving=3600) as it:
        it.reaches(phase)
        run = it.stopped()
        assert (run.status, devices_in_use(), living(run.id)) == (Status.STOPPED, [], [])
        if phase in ("training", "saving"):
            assert "Saved at step" in it.told()


def test_a_run_that_ignores_sigterm_is_killed_after_the_grace_period() -> None:
    with supervise(queue_run(**ENDLESS, deaf=True, ranks=2), leaving=0.5) as it:
        it.until(lambda run: run.step > 2)
        run = it.stopped()
        assert (run.status, living(run.id)) == (Status.STOPPED, [])
        assert "the checkpoint of step 2 is kept" in it.told()


def test_a_stop_request_at_the_end_leaves_the_run_finished() -> None:
    with supervise(queue_run(steps=2, hold="exit"), exiting=3600) as it:
        it.writes(b'"finished"')
        it.request(Request.STOP)
        lease = it.run.expires_at
        it.until(lambda run: run.expires_at > lease)  # it knows of the request
        it.go()
        assert it.wait().status is Status.FINISHED


def test_a_run_that_hangs_after_its_end_is_finished() -> None:
    with supervise(queue_run(steps=2, hold="exit"), exiting=0.2) as it:
        assert it.wait().status is Status.FINISHED


def test_sigterm_makes_a_supervisor_save_and_requeue_its_run() -> None:
    run_id = queue_run(**ENDLESS)
    with supervise(run_id) as it:
        it.until(lambda run: run.step > 2)
        it.process.terminate()
        assert it.wait().status is Status.QUEUED
        assert "Saved at step" in it.told()
    saved = it.run.step
    with supervise(run_id) as it:
        it.until(lambda run: run.step > saved + 1)
        assert f"Resumed from step {saved}" in it.told()
    assert outcomes(run_id)[0] == "requeued"


def test_a_requeue_request_in_the_database_requeues_the_run() -> None:
    with supervise(queue_run(**ENDLESS)) as it:
        it.until(lambda run: run.step > 2)
        it.request(Request.REQUEUE)
        assert it.wait().status is Status.QUEUED


def test_no_process_outlives_a_killed_supervisor() -> None:
    with supervise(queue_run(**ENDLESS, ranks=2)) as it:
        it.reaches("training")
        assert len(living(it.run_id)) == 3
        it.process.kill()
        eventually(lambda: not living(it.run_id), every=0.1)


def test_a_supervisor_that_lost_its_lease_ends_training_and_changes_nothing() -> None:
    with supervise(queue_run(**ENDLESS)) as it:
        it.reaches("training")
        with db.write() as session:
            session.get_one(Run, it.run_id).attempt = 7
        run = it.wait()
    assert (run.status, run.attempt, living(run.id)) == (Status.RUNNING, 7, [])


def test_records_are_stored_after_the_database_was_locked(home: Path) -> None:
    with supervise(queue_run(steps=40, hold=4)) as it:
        it.until(lambda run: run.step == 3)
        with locked_database(home):
            it.go()
            it.writes(b'"finished"')
        run = it.wait()
    assert run.status is Status.FINISHED
    assert loss_steps(run.id) == list(range(1, 41))


def test_training_ends_before_its_lease_expires_during_an_outage(home: Path) -> None:
    """A supervisor that a busy machine keeps from renewing its lease of a second ends in the same way."""
    run_id = queue_run(**ENDLESS)
    checkpoint = checkpoints_dir(get_settings().runs_dir / run_id) / "checkpoint-2"  # of an earlier attempt
    checkpoint.mkdir(parents=True)
    (checkpoint / "weights").write_text("1")
    checkpoints.seal(checkpoint)
    with supervise(run_id, lease_seconds=1.0) as it:
        it.until(lambda run: run.phase == "training" or run.status is Status.QUEUED)
        with locked_database(home):
            eventually(lambda: not living(it.run_id), every=0.1)
        assert it.wait().status is Status.QUEUED
        assert "The database was unreachable for so long that the work was stopped." in it.told()
        assert "It continues from the checkpoint of step 2." in it.told()


def test_a_run_that_finished_unnoticed_is_closed_without_another_training() -> None:
    run_id = queue_run(crash_in="loading data")
    folder = get_settings().runs_dir / run_id
    (folder / "adapter").mkdir(parents=True)
    (folder / "adapter" / "adapter_model.safetensors").write_bytes(b"weights")
    writer = EventWriter(folder / "events.jsonl")
    writer.write(RankStarted(rank=0, pid=1, device="cpu"))
    writer.write(Metrics(step=9, values={"loss": 0.5}))
    writer.write(Finished(outcome="finished", step=9, summary={"steps": 9}))
    with supervise(run_id) as it:
        run = it.wait()
    assert (run.status, run.summary, run.step) == (Status.FINISHED, {"steps": 9}, 9)
    assert not (folder / "crashed").exists()
    assert (folder / "adapter.zip").is_file()


def test_a_truncated_record_does_not_affect_the_next_one() -> None:
    run_id = queue_run(steps=2)
    folder = get_settings().runs_dir / run_id
    folder.mkdir()
    (folder / "events.jsonl").write_text('{"kind":"metrics","step":1,"val')
    with supervise(run_id) as it:
        assert it.wait().status is Status.FINISHED
    assert b'"val\n{"kind":"rank_started"' in (folder / "events.jsonl").read_bytes()


def test_the_log_has_no_secrets_or_progress_bars_and_accepts_invalid_bytes() -> None:
    printed = ["10%\r50%\r100%\n", "token hf_Abcdefghijklmnop\n", "nul \0 here\n", "the last line has no end"]
    with supervise(queue_run(steps=1, prints=printed)) as it:
        it.wait()
    assert it.log() == ["100%", "token hf_[redacted]", "nul  here", "the last line has no end"]


def test_endless_output_does_not_fill_the_database() -> None:
    with supervise(queue_run(steps=1, prints=["x\n"], times=100_000)) as it:
        it.wait()
    assert len(it.log()) <= 2002
    assert any("lines skipped" in line for line in it.log())


def test_no_rank_waits_for_one_that_has_died() -> None:
    with supervise(queue_run(**ENDLESS, ranks=2, crash_rank=1, crash_at=4, deaf=True), rank_died=0.5) as it:
        run = it.wait()
        assert (run.status, living(run.id)) == (Status.QUEUED, [])
        assert "It continues from the checkpoint of step 2." in it.told()


@pytest.mark.parametrize("ranks", [2, 4])
def test_rank_0_works_alone_for_longer_than_any_grace(ranks: int) -> None:
    with supervise(queue_run(steps=2, ranks=ranks, hold="verifying"), rank_died=0.0, exiting=0.0) as it:
        it.reaches("verifying")
        it.until(lambda _: len(it.ranks()) == 1)
        for _ in range(2):
            lease = it.run.expires_at
            it.until(lambda run, before=lease: run.expires_at > before)  # it has looked
        it.go()
        assert it.wait().status is Status.FINISHED
        killed = [line for line in it.log() if "Lathe sent" in line]
        assert all("did not exit after it had reported its end" in line for line in killed)  # on a busy machine


def test_a_kill_by_lathe_is_named_as_such() -> None:
    with supervise(
        queue_run(**ENDLESS, ranks=2, crash_rank=1, crash_at=4, how="vanish", deaf=True), rank_died=0.5
    ) as it:
        assert it.wait().status is Status.QUEUED
        why = "Rank 1 had ended in the phase training without a report, and the others did not exit within 0.5 s."
        assert f"Lathe killed the training: {why}" in it.told()
        assert "SIGKILL" not in it.told()
        assert any(line.startswith("Lathe sent SIGKILL to processes") and line.endswith(why) for line in it.log())


def test_an_error_that_a_rank_reports_and_does_not_exit_after_is_the_reason_and_is_not_retried() -> None:
    behaviour = {"crash_in": "loading model", "how": "unexpected", "lingers": True, "ranks": 2}
    with supervise(queue_run(**behaviour), rank_died=0.5) as it:
        run = it.wait()
    assert run.error is not None
    assert (run.status, run.error["message"]) == (Status.FAILED, "It cannot go on at loading model.")


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """A control group whose processes may use 256 MiB together."""
    version_1 = Path("/sys/fs/cgroup/memory")  # version 1 of control groups has a folder for memory
    group = (version_1 if version_1.is_dir() else version_1.parent) / f"lathe-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("making a control group needs root")
    try:
        (group / ("memory.limit_in_bytes" if version_1.is_dir() else "memory.max")).write_text(str(256 * 2**20))
        yield group
    except OSError:
        pytest.skip("this control group cannot limit memory")
    finally:
        group.rmdir()


def test_an_out_of_memory_kill_by_the_kernel_is_reported(small_memory: Path) -> None:
    with supervise(queue_run(steps=4, hold=2, crash_at=2, how="eat")) as it:
        it.until(lambda run: run.step == 1)
        (rank,) = it.ranks()
        (small_memory / "cgroup.procs").write_text(str(rank.pid))
        it.go()
        run = it.wait()
    assert run.status is Status.FAILED
    assert run.error is not None
    assert "out of memory (host RAM)" in run.error["message"]


def test_the_trainer_gets_the_hub_token_and_no_other_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATHE_HUB_TOKEN", "hf_secret")
    monkeypatch.setenv("LATHE_DATABASE_URL", "postgresql://user:password@db/lathe")
    env = environment(Launch([], {"A": "b"}), "run1", Settings())
    assert (env["HF_TOKEN"], env["A"], env["PYTHONSAFEPATH"]) == ("hf_secret", "b", "1")
    assert sorted(name for name in env if name.startswith("LATHE_")) == [
        "LATHE_RUN",
        "LATHE_SUPERVISOR",
        "LATHE_TOKENS",
    ]


def test_a_frozen_trainer_can_be_stopped() -> None:
    with supervise(queue_run(**ENDLESS), leaving=0.5) as it:
        it.until(lambda run: run.step > 2)
        for process in living(it.run_id):
            process.send_signal(signal.SIGSTOP)
        run = it.stopped()
        assert (run.status, living(run.id)) == (Status.STOPPED, [])


@pytest.mark.parametrize(
    "recorded", [False, True], ids=["chosen by the supervisor", "chosen by a rank of an older version"]
)
def test_an_out_of_memory_run_steps_down_and_both_attempts_record_it(recorded: bool, database: str) -> None:
    less = {"micro_batch_size": 2, "gradient_accumulation_steps": 2}
    record = {"step_down": less} if recorded else {}
    run_id = queue_run(steps=5, save_at=2, crash_at=3, how="out of memory", **record)
    with supervise(run_id) as it:
        assert it.wait().status is Status.QUEUED
    with supervise(run_id) as it:
        assert it.wait().status is Status.FINISHED
    trained = json.loads((it.run_dir / "config.json").read_text())
    assert {name: trained[name] for name in less} == less
    assert it.run.config["micro_batch_size"] == 4
    with db.read() as session:
        first, second = runs.attempts(session=session, run_id=run_id)
    assert (first.stepped_down, second.stepped_down) == ({}, less)
    assert first.out_of_memory and first.out_of_memory["step"] == 3
    assert (
        "It continues from the checkpoint of step 2, with micro batch size 2, gradient accumulation 2." in first.reason
    )
