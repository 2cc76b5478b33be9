"""Runs in the database, from queued to ended."""

import json
import time

import pytest
from held_runs import GPU, attempts_of, claim, finish, leased, now_of, renew, request_stop, requeue, resume, told_of
from sqlmodel import select, update

from training.run_folder.events import CheckpointSaved
from worker.settings import get_settings
from worker.store import claims, history, metrics, run_list, runs, waiting
from worker.store import database as db
from worker.store.run_list import Query
from worker.store.runs import NotEnded, NotResumable, NotRunning, RunNotFound
from worker.store.tables import Metric, Request, Run, Status

# Ids and finding


def test_ids_are_short_lowercase_and_sort_by_time():
    created = [runs.new_id(1_700_000_000 + seconds) for seconds in range(100)]
    assert created == sorted(created)
    assert {len(item) for item in created} == {12}
    assert set("".join(created)) <= set(runs.ID_LETTERS)


def test_ids_created_at_the_same_time_differ():
    # Ids have 20 random bits: of 100 ids, two are equal once in 200 times, and three pairs once in 50 million.
    assert len({runs.new_id(1_700_000_000) for _ in range(100)}) > 97


def test_a_new_run_is_queued_under_its_title(database, new_run):
    run = new_run(model="models/tiny", data="rows.jsonl")
    assert (run.status, run.name, run.attempt, run.queued_at) == (
        Status.QUEUED,
        "tiny on rows.jsonl",
        0,
        run.created_at,
    )


def test_a_run_is_found_by_its_id_or_a_prefix(database, new_run):
    run = new_run()
    with db.read() as session:
        assert runs.get(session=session, run_id=run.id).id == run.id
        assert runs.get(session=session, run_id=run.id[:8].upper()).id == run.id


def test_an_ambiguous_prefix_is_refused_with_the_matching_ids(database, new_run):
    first, second = new_run(), new_run()
    with db.read() as session, pytest.raises(RunNotFound, match="is the beginning of several ids") as refused:
        runs.get(session=session, run_id=first.id[:4])
    assert first.id in str(refused.value) and second.id in str(refused.value)


@pytest.mark.parametrize("run_id", ["nothing", "abc", "", "%%%%", "____", "ab\0cd", "\ud800\ud800", "a" * 60_000])
def test_a_missing_run_is_reported_with_the_command_that_lists_runs(database, new_run, run_id):
    new_run()
    with db.read() as session, pytest.raises(RunNotFound, match=r"does not exist\. `lathe runs`"):
        runs.get(session=session, run_id=run_id)


# The history


def test_the_history_is_filtered_by_status_and_words(database, new_run):
    first, second = new_run(name="Alpha 100%", model="org/llama"), new_run(name="Beta", model="org/qwen", method="full")
    claim(second.id)

    def found(**filters):
        with db.read() as session:
            return [run.id for run in run_list.listing(session=session, query=Query(**filters))]

    assert found() == [second.id, first.id]
    assert found(limit=1) == [second.id]
    assert found(status=Status.RUNNING) == [second.id]
    assert found(search="ALPHA llama") == [first.id]
    assert found(search="full") == [second.id]
    assert found(search="0%") == [first.id]
    assert found(search="rows.jsonl") == [second.id, first.id]
    assert found(search="nothing") == []
    assert found(search="al\0pha") == [first.id]


def test_the_history_is_sortable_by_every_column_with_missing_values_last(database, new_run):
    low, high, none = new_run(name="b"), new_run(name="a"), new_run(name="c")
    with db.write() as session:
        session.get_one(Run, low.id).final_loss = 1.0
        session.get_one(Run, high.id).final_loss = 2.0
    with db.read() as session:
        for order_by in run_list.orders():
            assert len(run_list.listing(session=session, query=Query(order_by=order_by))) == 3
        ascending = run_list.listing(session=session, query=Query(order_by="final_loss", descending=False))
        descending = run_list.listing(session=session, query=Query(order_by="final_loss"))
        by_name = run_list.listing(session=session, query=Query(order_by="name", descending=False))
    assert [run.id for run in ascending] == [low.id, high.id, none.id]
    assert [run.id for run in descending] == [high.id, low.id, none.id]
    assert [run.name for run in by_name] == ["a", "b", "c"]


def test_sorting_by_an_unknown_column_lists_the_choices(database):
    with db.read() as session, pytest.raises(ValueError, match=r"cannot be sorted by 'colour'\. Choose queued_at, "):
        run_list.listing(session=session, query=Query(order_by="colour"))


# Ending


def test_a_finished_run_keeps_its_summary_and_frees_its_devices(database, new_run):
    run = claim(new_run().id)
    assert finish(run, exit_code=0, summary={"steps": 10})
    ended = now_of(run)
    assert (ended.status, ended.summary, ended.holder, ended.devices) == (Status.FINISHED, {"steps": 10}, None, [])
    assert ended.finished_at is not None
    assert leased() == []
    (attempt,) = attempts_of(run)
    assert (attempt.outcome, attempt.exit_code, attempt.ended_at is None) == ("finished", 0, False)


def test_a_failed_run_stores_its_redacted_error(database, new_run):
    run = claim(new_run().id)
    error = {"message": "token hf_Abcdefghijk", "log": ["hf_Abcdefghijk"]}
    finish(run, Status.FAILED, reason="no access with hf_Abcdefghijk", error=error)
    assert now_of(run).error == {"message": "token hf_[redacted]", "log": ["hf_[redacted]"]}
    assert attempts_of(run)[0].reason == "no access with hf_[redacted]"
    assert told_of(run)[-1] == ("failed", "error", "Failed. no access with hf_[redacted]")


def test_an_older_attempt_cannot_end_the_run(database, new_run):
    old = claim(new_run().id)
    requeue(old)
    new = claim(old.id)
    assert not finish(old)
    assert not requeue(old)
    assert (now_of(new).status, now_of(new).attempt, leased()) == (Status.RUNNING, 2, [GPU])


def test_a_run_can_end_only_once(database, new_run):
    run = claim(new_run().id)
    assert finish(run, Status.STOPPED)
    assert not finish(run, Status.FAILED)
    assert not requeue(run)
    assert now_of(run).status is Status.STOPPED


def test_a_requeued_run_keeps_its_place_in_the_queue(database, new_run):
    first, second = new_run(), new_run()
    requeue(claim(first.id))
    with db.read() as session:
        assert [run.id for run in waiting.waiting(session=session)] == [first.id, second.id]
    assert leased() == []


def test_a_run_with_a_stop_request_is_stopped_instead_of_requeued(database, new_run):
    run = claim(new_run().id)
    request_stop(run)
    assert requeue(run)
    assert now_of(run).status is Status.STOPPED


def test_a_new_attempt_clears_the_previous_error(database, new_run):
    run = claim(new_run().id)
    finish(run, Status.FAILED, error={"message": "x"}, summary={"steps": 1})
    resume(run)
    again = claim(run.id)
    assert (again.attempt, again.error, again.summary, again.finished_at) == (2, None, None, None)
    assert again.started_at == run.started_at


# Requests of a user


def test_stopping_a_queued_run_ends_it_at_once(database, new_run):
    run = request_stop(new_run())
    assert (run.status, run.finished_at is None) == (Status.STOPPED, False)


def test_stopping_an_active_run_requests_it_from_the_supervisor(database, new_run):
    run = claim(new_run().id)
    request_stop(run)
    assert request_stop(run).status is Status.RUNNING
    assert renew(run) is Request.STOP
    assert [event for event in told_of(run) if event[0] == "stop"] == [("stop", "info", "Stop requested.")]


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (Status.FINISHED, "already finished"),
        (Status.FAILED, "already failed"),
        (Status.STOPPED, "already been stopped"),
    ],
)
def test_an_ended_run_cannot_be_stopped(database, new_run, status, message):
    run = claim(new_run().id)
    finish(run, status)
    with pytest.raises(NotRunning, match=f"{run.id}.* has {message}; there is nothing to stop."):
        request_stop(run)


def test_a_stopping_machine_requests_a_requeue_of_its_runs_without_a_stop_request(database, new_run):
    here, stopping, elsewhere = (new_run() for _ in range(3))
    claim(here.id)
    claim(stopping.id, devices=["node1/cuda:1"])
    claim(elsewhere.id, owner="node2:1:1", devices=["node2/cuda:0"])
    request_stop(stopping)
    with db.write() as session:
        assert [run.id for run in runs.request_requeue_all(session=session, host="node1")] == [here.id]
    assert [now_of(run).request for run in (here, stopping, elsewhere)] == [Request.REQUEUE, Request.STOP, None]


@pytest.mark.parametrize("status", [Status.FAILED, Status.STOPPED])
def test_a_resumed_run_goes_to_the_end_of_the_queue(database, new_run, status):
    run = claim(new_run().id)
    finish(run, status)
    other = new_run()
    assert resume(run).status is Status.QUEUED
    with db.read() as session:
        assert [item.id for item in waiting.waiting(session=session)] == [other.id, run.id]


def test_a_resumed_run_does_not_stop_again_for_a_review(database, new_run):
    run = claim(new_run(stop_after_baseline=True).id)
    finish(run, Status.STOPPED)
    assert resume(run).stepped_down == {"stop_after_baseline": False}


def test_active_and_finished_runs_cannot_be_resumed(database, new_run):
    run = new_run()
    with pytest.raises(NotResumable, match=f"{run.id}.* is queued already"):
        resume(run)
    claimed = claim(run.id)
    with pytest.raises(NotResumable, match="is running already"):
        resume(run)
    finish(claimed)
    with pytest.raises(NotResumable, match="has finished; clone it"):
        resume(run)


def test_resuming_resets_the_count_of_lost_and_failed_attempts(database, new_run):
    def failed(run):
        with db.read() as session:
            return claims.failed_attempts(session=session, run=now_of(run))

    run = new_run()
    requeue(claim(run.id), outcome="lost")
    requeue(claim(run.id), outcome="requeued")
    requeue(claim(run.id), outcome="failed")
    assert failed(run) == 2
    finish(claim(run.id), Status.FAILED)
    assert failed(run) == 3
    time.sleep(0.002)  # SQLite's clock has milliseconds
    resume(run)
    assert failed(run) == 0


def test_a_new_checkpoint_resets_the_count_of_lost_and_failed_attempts(database, new_run):
    def attempt(*saved):
        with db.read() as session:
            before = claims.failed_attempts(session=session, run=now_of(run))
        claimed = claim(run.id)
        reports = [CheckpointSaved(step=step, path=f"checkpoint-{step}", bytes=1) for step in saved]
        with db.write() as session:
            offset = claimed.event_offset + 1
            history.apply(session=session, run_id=run.id, attempt=claimed.attempt, events=reports, new_offset=offset)
        requeue(claimed, outcome="lost")
        return before

    run = new_run()
    assert [attempt(), attempt(), attempt(10, 20)] == [0, 1, 2]
    assert [attempt(30), attempt(), attempt(30)] == [1, 1, 2], (
        "the one that saved counts; the same step again is no progress"
    )
    assert [attempt(40), attempt()] == [3, 1]


def test_deleting_a_run_deletes_its_records_and_its_folder(database, new_run):
    run = claim(new_run().id)
    folder = get_settings().runs_dir / run.id
    folder.mkdir()
    (folder / "events.jsonl").touch()
    with db.write() as session:
        metrics.add(session=session, run_id=run.id, points=[metrics.Point("loss", -1, 1, 0.0, 1.0)])
    finish(run)
    with db.write() as session:
        runs.delete(session=session, run_id=run.id)
        assert folder.exists()
    with db.read() as session:
        assert (session.exec(select(Run)).all(), session.exec(select(Metric)).all()) == ([], [])
    assert not folder.exists()


@pytest.mark.parametrize("field", ["teacher", "init_adapter", "rewards"])
def test_a_run_whose_result_a_waiting_run_loads_cannot_be_deleted(database, new_run, field):
    first, other = new_run().id, new_run().id
    waiting = new_run(**{field: json.dumps([{"reward": "model", "run": first}]) if field == "rewards" else first}).id
    with db.write() as session:
        session.exec(update(Run).where(Run.id.in_([first, other])).values(status=Status.FINISHED))
    with db.write() as session:
        runs.delete(session=session, run_id=other)
    with db.write() as session, pytest.raises(runs.InUse, match="of queued or running runs"):
        runs.delete(session=session, run_id=first)
    with db.write() as session:
        session.exec(update(Run).where(Run.id == waiting).values(status=Status.FAILED))
    with db.write() as session:
        runs.delete(session=session, run_id=first)


def test_an_active_run_cannot_be_deleted(database, new_run):
    run = new_run()
    with db.write() as session, pytest.raises(NotEnded, match=f"{run.id}.* is queued. Stop it before you delete it."):
        runs.delete(session=session, run_id=run.id)


def test_the_events_record_the_course_of_a_run(database, new_run):
    run = claim(new_run().id)
    requeue(run, reason="the worker is restarting")
    request_stop(claim(run.id))
    finish(now_of(run), Status.STOPPED, reason="Saved at step 5.")
    assert told_of(run) == [
        ("attempt", "info", f"Attempt 1 starts on {GPU}."),
        ("requeued", "info", "Requeued. the worker is restarting"),
        ("attempt", "info", f"Attempt 2 starts on {GPU}."),
        ("stop", "info", "Stop requested."),
        ("stopped", "info", "Stopped. Saved at step 5."),
    ]
