"""A repeated request queues one run, also when both arrive at once."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from played_run import model_folder
from sqlmodel import select

from training.config.fields import parse
from worker import celery_app
from worker.datasets import datasets
from worker.runs import submit
from worker.store import database as db
from worker.store import run_list, runs, submissions
from worker.store.submissions import KeyReused, Submission
from worker.store.tables import IdempotencyKey


@pytest.fixture
def values(database, tmp_path, monkeypatch):
    """Valid settings of a run, on both engines, without a broker."""
    monkeypatch.setattr(celery_app, "notify", lambda run_id: False)
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"{n}", "completion": f"{n + 1}"}) + "\n" for n in range(20)))
    return {"model": str(model_folder(tmp_path / "model")), "data": str(data)}


def queued(values, key="a", owner="local"):
    return submit.submit(parse(values), owner=owner, submission=Submission.of(key, owner, values)).id


def all_ids():
    with db.read() as session:
        return [run.id for run in run_list.listing(session=session)]


def test_a_repeated_key_gives_the_first_run(values):
    assert queued(values) == queued(values)
    assert len(all_ids()) == 1


def test_two_keys_queue_two_runs_and_so_do_two_users(values):
    assert len({queued(values, "a"), queued(values, "b"), queued(values, "a", "alice")}) == 3


def test_a_key_with_another_body_is_refused(values):
    first = queued(values)
    with pytest.raises(KeyReused, match="Idempotency-Key") as caught:
        queued(values | {"lora_r": 4})
    assert first in caught.value.message
    assert all_ids() == [first]


def test_requests_at_once_with_one_key_queue_one_run(values):
    with ThreadPoolExecutor(5) as pool:
        ids = set(pool.map(lambda _: queued(values), range(5)))
    assert all_ids() == list(ids)
    assert len(ids) == 1


def test_a_request_that_another_one_passed_gives_the_first_run_and_keeps_its_data(values, monkeypatch):
    first = queued(values)
    monkeypatch.setattr(submissions, "_stored", lambda submission: None)  # it looked before the first one was stored
    assert queued(values) == first
    assert all_ids() == [first]


def test_data_of_a_refused_request_that_another_run_uses_meanwhile_is_kept(values):
    with pytest.raises(KeyReused), submit.prepared(parse(values)):
        first = queued(values)
        raise KeyReused("Idempotency-Key", "a", "was sent before.")
    with db.read() as session:
        assert datasets.get(session=session, dataset_id=runs.get(session=session, run_id=first).dataset_id)


def test_a_run_whose_data_a_refused_request_deletes_meanwhile_is_queued(values, monkeypatch):
    create, deleted = submit._create, []

    def after_the_other(ready, *others):
        if not deleted:
            deleted.append(ready.data.training.id)
            with db.write() as session:
                datasets.delete(session=session, dataset_id=deleted[0])
        return create(ready, *others)

    monkeypatch.setattr(submit, "_create", after_the_other)
    run = queued(values)
    assert all_ids() == [run] and deleted


def test_keys_are_forgotten_after_a_day(values):
    first = queued(values)
    with db.write() as session:
        for stored in session.exec(select(IdempotencyKey)):
            stored.created_at -= submissions.KEPT_SECONDS + 1
            session.add(stored)
    second = queued(values | {"lora_r": 4})
    assert second != first
    with db.read() as session:
        assert [stored.run_id for stored in session.exec(select(IdempotencyKey))] == [second]
