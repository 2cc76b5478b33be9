"""Storing and reading the records of a run."""

import math

import pytest

from training.run_folder.events import (
    CheckpointSaved,
    Failed,
    Finished,
    Metrics,
    Note,
    OutOfMemory,
    PhaseStarted,
    Planned,
    Progress,
    RankStarted,
    Resumed,
)
from worker.store import claims, history, runs, series
from worker.store import database as db

PLAN = Planned(
    total_steps=100,
    start_step=0,
    train_rows=400,
    eval_rows=20,
    skipped_rows=0,
    truncated_rows=1,
    engine="DeepSpeedEngine",
    zero_stage=2,
    world_size=2,
    precision="fp32",
    trainable_parameters=10,
    total_parameters=100,
    target_modules=["q_proj"],
)


@pytest.fixture
def run(new_run):
    """A run in its first attempt."""
    queued = new_run()
    with db.write() as session:
        claims.claim(session=session, run_id=queued.id, owner="node1:1:1", devices=["node1/cpu"], lease_seconds=60)
    return queued


def apply(run, *events, attempt=1, new_offset=None):
    with db.write() as session:
        offset = runs.get(session=session, run_id=run.id).event_offset
        return history.apply(
            session=session, run_id=run.id, attempt=attempt, events=events, new_offset=new_offset or offset + 100
        )


def now_of(run):
    with db.read() as session:
        return runs.get(session=session, run_id=run.id)


def told(run):
    with db.read() as session:
        events = history.events(session=session, run_id=run.id)
    return [(event.kind, event.level, event.step, event.message) for event in events if event.kind != "attempt"]


def loss(step, value, time=0.0):
    return Metrics(step=step, values={"loss": value}, time=time)


def test_a_batch_updates_the_run_its_metrics_and_its_events(run):
    started = (RankStarted(rank=0, pid=1, device="cpu"), PhaseStarted(phase="training"), PLAN)
    assert apply(run, *started, loss(1, 3.0), loss(2, 2.5), new_offset=77)
    updated = now_of(run)
    assert (updated.phase, updated.step, updated.total_steps, updated.final_loss, updated.event_offset) == (
        "training",
        2,
        100,
        2.5,
        77,
    )
    assert updated.plan["engine"] == "DeepSpeedEngine"
    assert told(run) == [("phase", "info", None, "training")]
    with db.read() as session:
        assert series.latest(session=session, run_id=run.id) == {("loss", -1): (2, 2.5)}


def test_records_of_an_older_attempt_are_refused(run):
    with db.write() as session:
        claims.requeue(session=session, run_id=run.id, attempt=1, reason="lost")
        claims.claim(session=session, run_id=run.id, owner="node2:1:1", devices=["node2/cpu"], lease_seconds=60)
    assert not apply(run, PhaseStarted(phase="training"), loss(5, 1.0), attempt=1)
    assert (now_of(run).step, now_of(run).phase, now_of(run).event_offset) == (0, "starting supervisor", 0)
    assert apply(run, loss(5, 1.0), attempt=2)


def test_storing_a_batch_twice_counts_once(run):
    for _ in range(2):
        assert apply(run, Note(message="once"), loss(1, 1.0), new_offset=50)
    assert told(run) == [("note", "info", None, "once")]


def test_a_failed_batch_stores_nothing(run):
    with pytest.raises(RuntimeError), db.write() as session:
        history.apply(session=session, run_id=run.id, attempt=1, events=[loss(1, 1.0), Note(message="x")], new_offset=9)
        raise RuntimeError
    assert (now_of(run).event_offset, told(run)) == (0, [])


def test_the_final_loss_of_a_run_that_trains_on_rewards_is_minus_the_reward(run):
    apply(run, Metrics(step=1, values={"loss": 0.01, "reward": 0.75}))
    assert now_of(run).final_loss == -0.75
    apply(run, Metrics(step=2, values={"loss": 0.01, "reward": None}))
    assert (now_of(run).final_loss, now_of(run).diverged) == (None, False)


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
@pytest.mark.parametrize("name", ["loss", "eval_loss"])
def test_a_nan_loss_marks_the_run_as_diverged(run, name, value):
    apply(run, loss(1, 2.0), Metrics(step=2, values={name: value}))
    assert (now_of(run).diverged, now_of(run).final_loss, now_of(run).best_loss) == (True, 2.0, None)


def test_a_nan_gradient_norm_does_not_mark_the_run_as_diverged(run):
    apply(run, Metrics(step=1, values={"loss": 1.0, "grad_norm": math.inf}))
    assert not now_of(run).diverged


def test_the_best_loss_is_the_lowest_evaluation_loss(run):
    apply(run, *(Metrics(step=step, values={"eval_loss": value}) for step, value in ((10, 3.0), (20, 1.5))))
    apply(run, Metrics(step=30, values={"eval_loss": 2.0}))
    assert now_of(run).best_loss == 1.5


def test_the_peak_memory_is_the_highest_of_any_rank_on_device_or_else_host(run):
    apply(run, Metrics(step=1, rank=0, values={"host_rss": 5e9, "memory_peak": 0}))
    apply(run, Metrics(step=1, rank=1, values={"host_rss": 6e9}))
    assert now_of(run).peak_bytes == 6_000_000_000


def test_host_memory_does_not_count_as_peak_on_a_device(run):
    apply(run, Metrics(step=1, rank=0, values={"host_rss": 5e9, "memory_peak": 2e9}))
    assert now_of(run).peak_bytes == 2_000_000_000


def test_the_peak_includes_what_a_rank_held_when_it_was_out_of_memory_and_that_of_the_result(run):
    held = {"allocated": 36 * 2**20, "limit": 40 * 2**20}
    apply(run, Metrics(step=1, rank=0, values={"memory_peak": 4 * 2**20}))
    apply(run, OutOfMemory(rank=0, device="cpu", phase="training", policy="fail", memory=held))
    assert now_of(run).peak_bytes == 36 * 2**20
    apply(run, Finished(outcome="finished", step=1, summary={"memory": {"peak_bytes": [37 * 2**20, None]}}))
    assert now_of(run).peak_bytes == 37 * 2**20


def test_a_resumed_run_returns_to_the_step_of_its_checkpoint(run):
    apply(run, PLAN, loss(50, 1.0))
    apply(
        run,
        Resumed(step=40, path="checkpoints/checkpoint-40", rejected=["checkpoint-50: model.safetensors is cut off"]),
    )
    assert now_of(run).step == 40
    assert told(run)[-1] == (
        "resumed",
        "warning",
        40,
        "Resumed from step 40. Newer checkpoints were incomplete: checkpoint-50: model.safetensors is cut off.",
    )


def test_records_out_of_order_do_not_decrease_the_step(run):
    apply(run, loss(11, 1.0), Metrics(step=10, rank=1, values={"host_rss": 1.0}))
    assert now_of(run).step == 11


def test_the_step_time_comes_from_the_latest_rows_of_the_attempt(run):
    apply(run, PLAN, *(loss(step, 1.0, time=100.0 + 9 * step) for step in range(1, 20)))
    assert now_of(run).seconds_per_step == pytest.approx(9.0)
    again = Planned(**{**PLAN.__dict__, "start_step": 10})
    apply(run, again, *(loss(step, 1.0, time=5000.0 + 2 * step) for step in range(11, 15)))
    assert now_of(run).seconds_per_step == pytest.approx(2.0)


def test_one_row_gives_no_step_time(run):
    apply(run, PLAN, loss(1, 1.0))
    assert now_of(run).seconds_per_step is None


def test_progress_belongs_to_its_phase(run):
    apply(run, PhaseStarted(phase="loading data"), Progress(done=10, total=50))
    assert (now_of(run).phase_done, now_of(run).phase_total) == (10, 50)
    apply(run, PhaseStarted(phase="training"))
    assert (now_of(run).phase_done, now_of(run).phase_total) == (None, None)


def test_checkpoints_notes_and_failures_become_redacted_messages(run):
    apply(
        run,
        CheckpointSaved(step=25, path="checkpoints/checkpoint-25", bytes=3 * 2**20),
        Note(message="token hf_Abcdefghijkl\0", level="warning"),
        Failed(rank=1, error="OSError", message="model (given: 'x') is gone.", fix="Give another."),
        Finished(outcome="stopped", step=30, summary={}),
    )
    assert told(run) == [
        ("checkpoint", "info", 25, "Checkpoint at step 25 (3.0 MiB)."),
        ("note", "warning", None, "token hf_[redacted]"),
        ("failed", "error", None, "Rank 1: model (given: 'x') is gone. Give another."),
    ]
    assert now_of(run).step == 30


def test_events_are_read_from_a_position(run):
    with db.write() as session:
        for number in range(5):
            history.note(session=session, run=run, message=str(number))
    with db.read() as session:
        first = history.events(session=session, run_id=run.id, limit=3)
        assert [event.message for event in first] == ["2", "3", "4"]
        assert history.events(session=session, run_id=run.id, after_id=first[-1].id) == []
        later = history.events(session=session, run_id=run.id, after_id=first[0].id)
        assert [event.message for event in later] == ["3", "4"]
