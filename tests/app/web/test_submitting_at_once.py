"""Twenty clients at once against a server: with one key, and while the broker is killed."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from forked_server import server
from played_run import model_folder
from sqlmodel import select
from web import account

from worker.queue import local_broker
from worker.settings import get_settings
from worker.store import database as db
from worker.store.listed import run_list
from worker.store.tables import IdempotencyKey

pytestmark = pytest.mark.slow

CLIENTS = 20
ROW = '{"prompt": "one", "completion": "two"}\n'


@pytest.fixture
def body(database, tmp_path):
    (tmp_path / "rows.jsonl").write_text(ROW * 20)
    return {"model": str(model_folder(tmp_path / "model")), "data": str(tmp_path / "rows.jsonl"), "max_steps": 1}


@pytest.fixture
def served(body):
    settings = get_settings()
    url = {"DATABASE_URL": settings.database_url} if settings.database_url else {}
    with server(settings.data_dir, CHECK_TEMPLATES="false", **url) as started:
        yield started


def all_ids():
    with db.read() as session:
        return {run.id for run in run_list.listing(session=session, limit=1000)}


def at_once(served, requests):
    """The answers to POST /api/runs of as many clients; each request is (headers, query, body)."""

    def post(request):
        headers, query, body = request
        with httpx.Client(base_url=served.address, timeout=None, trust_env=False) as web:
            return web.post("/api/runs", headers=headers, params=query, json=body)

    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(post, requests))


def test_clients_with_one_key_queue_one_run(served, body):
    answers = at_once(served, [({"Idempotency-Key": "a"}, {}, body)] * CLIENTS)
    assert {answer.status_code for answer in answers} == {201}
    assert {answer.json()["id"] for answer in answers} == all_ids() and len(all_ids()) == 1


def test_of_clients_with_one_key_and_several_bodies_those_with_the_first_body_get_its_run(served, body):
    bodies = [body | {"lora_r": rank} for rank in (4, 8, 16, 32)] * (CLIENTS // 4)
    answers = at_once(served, [({"Idempotency-Key": "a"}, {}, one) for one in bodies])
    (first,) = all_ids()
    granted = [one["lora_r"] for one, answer in zip(bodies, answers, strict=True) if answer.status_code == 201]
    assert len(set(granted)) == 1 and len(granted) == CLIENTS // 4
    for answer in answers:
        if answer.status_code == 201:
            assert answer.json()["id"] == first
        else:
            assert (answer.status_code, answer.json()["error"]["field"]) == (409, "Idempotency-Key")
            assert first in answer.json()["error"]["message"]


def test_accounts_with_one_key_queue_a_run_each(served, body):
    tokens = [account(f"user{number}") for number in range(4)]
    body = {"model": "static/starter", "data": "static/starter/train.jsonl", "max_steps": 1}
    requests = [(token | {"Idempotency-Key": "a"}, {}, body) for token in tokens] * (CLIENTS // 4)
    answers = at_once(served, requests)
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 4 == len(all_ids())
    assert {(answer.json()["id"], answer.json()["owner"]) for answer in answers} == {
        (answer.json()["id"], answer.json()["owner"]) for answer in answers[:4]
    }
    with db.read() as session:
        assert len(session.exec(select(IdempotencyKey)).all()) == 4


def test_the_same_body_as_a_clone_is_another_request(served, body):
    (first,) = at_once(served, [({"Idempotency-Key": "a"}, {}, body)])
    (second,) = at_once(served, [({"Idempotency-Key": "a"}, {"parent": first.json()["id"]}, body)])
    assert (second.status_code, second.json()["error"]["field"]) == (409, "Idempotency-Key")


def test_a_broker_that_is_killed_during_submit_loses_and_doubles_nothing(served, body):
    broker = local_broker.start(get_settings())
    requests = [({"Idempotency-Key": str(number)}, {}, body) for number in range(3 * CLIENTS)]
    with ThreadPoolExecutor(2) as pool:
        answers = pool.submit(at_once, served, requests)
        while not all_ids():
            pass
        broker.kill()
        broker.wait()
        assert {answer.status_code for answer in answers.result()} == {201}
    queued = [answer.json()["id"] for answer in answers.result()]
    assert set(queued) == all_ids() and len(queued) == 3 * CLIENTS
    again = at_once(served, requests[:CLIENTS])  # by clients that did not get the answer
    assert [answer.json()["id"] for answer in again] == queued[:CLIENTS]
    assert all_ids() == set(queued)
