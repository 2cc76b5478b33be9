"""Twenty clients at once against two web servers: with one key, beyond a quota, and while the broker is killed."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle, repeat

import httpx
import pytest
from forked_server import server
from played_run import model_folder
from sqlmodel import select
from web import account

from worker.queue import local_broker
from worker.settings import get_settings
from worker.store import accounts, run_list
from worker.store import database as db
from worker.store.tables import IdempotencyKey

pytestmark = pytest.mark.slow

CLIENTS = 20
STARTER = {"model": "static/starter", "data": "static/starter/train.jsonl", "max_steps": 1}
ROW = '{"prompt": "one", "completion": "two"}\n'


@pytest.fixture
def body(database, tmp_path):
    (tmp_path / "rows.jsonl").write_text(ROW * 20)
    return {"model": str(model_folder(tmp_path / "model")), "data": str(tmp_path / "rows.jsonl"), "max_steps": 1}


@pytest.fixture
def served(body):
    settings = get_settings()
    url = {"DATABASE_URL": settings.database_url} if settings.database_url else {}
    with ExitStack() as held:
        yield [held.enter_context(server(settings.data_dir, CHECK_TEMPLATES="false", **url)) for _ in range(2)]


def all_ids():
    with db.read() as session:
        return {run.id for run in run_list.listing(session=session, query=run_list.Query(limit=1000))}


def at_once(served, requests, paths=()):
    """The answers to a POST of as many clients, which use the servers in turn; each request is (headers, query, body)."""

    def post(server, request, path):
        headers, query, body = request
        with httpx.Client(base_url=server.address, timeout=None, trust_env=False) as web:
            return web.post(path, headers=headers, params=query, json=body)

    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(post, cycle(served), requests, paths or repeat("/api/runs")))


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


def test_accounts_with_one_key_queue_a_run_each(served):
    tokens = [account(f"user{number}") for number in range(4)]
    requests = [(token | {"Idempotency-Key": "a"}, {}, STARTER) for token in tokens] * (CLIENTS // 4)
    answers = at_once(served, requests)
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 4 == len(all_ids())
    assert {(answer.json()["id"], answer.json()["owner"]) for answer in answers} == {
        (answer.json()["id"], answer.json()["owner"]) for answer in answers[:4]
    }
    with db.read() as session:
        assert len(session.exec(select(IdempotencyKey)).all()) == 4


@pytest.fixture
def alice(database):
    """An account that may have five waiting runs; the headers of its requests."""
    token = account("alice")
    with db.write() as session:
        accounts.limit(session=session, name="alice", limits={"max_waiting": 5})
    return token


def refused(answer):
    return answer.status_code == 422 and answer.json()["error"]["field"] == "owner"


def test_an_account_queues_no_more_runs_at_once_than_it_may_have_waiting(served, alice):
    answers = at_once(served, [(alice, {}, STARTER | {"seed": number}) for number in range(CLIENTS)])
    queued = {answer.json()["id"] for answer in answers if answer.status_code == 201}
    assert queued == all_ids() and len(queued) == 5
    assert sum(map(refused, answers)) == CLIENTS - 5


def test_runs_resumed_at_once_count_too(served, alice):
    stopped = [answer.json()["id"] for answer in at_once(served, [(alice, {}, STARTER)] * 5)]
    with httpx.Client(base_url=served[0].address, headers=alice, trust_env=False) as web:
        for run_id in stopped:
            assert web.post(f"/api/runs/{run_id}/stop").status_code == 200
    at_once(served, [(alice, {}, STARTER)] * 3)
    answers = at_once(served, [(alice, {}, {})] * 5, [f"/api/runs/{run_id}/resume" for run_id in stopped])
    assert (sum(answer.status_code == 200 for answer in answers), sum(map(refused, answers))) == (2, 3)


def test_a_key_gets_one_answer_from_all_servers_when_the_quota_is_used_up_meanwhile(served, alice):
    requests = [(alice | {"Idempotency-Key": str(number // 4)}, {}, STARTER) for number in range(10 * 4)]
    answers = at_once(served, requests)
    outcomes = [{answer.json().get("id") for answer in answers[first : first + 4]} for first in range(0, 40, 4)]
    assert all(len(outcome) == 1 for outcome in outcomes), outcomes
    assert all(answer.status_code == 201 or refused(answer) for answer in answers)
    assert set().union(*outcomes) - {None} == all_ids() and len(all_ids()) == 5


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
