"""Access: the server's user needs no token, everybody else does; and who can change what."""

import atexit
import json
import os
import re
import subprocess
import sys
from functools import cache

import pytest
from environment import use
from forked_server import server
from paths import PROGRAMS
from played_run import PlayedRun
from prepared import copied
from web import application

from app.access.server_token import TOKEN_FILE
from worker.settings import get_settings
from worker.store import accounts, database
from worker.store.tables import Dataset, Run

pytestmark = pytest.mark.slow

NOBODY = 65534
OPEN = {"/healthz", "/sign-in"}
PAGE = {"Accept": "text/html"}


@pytest.fixture(scope="module")
def installation(tmp_path_factory):
    """A server run by root, with accounts for alice, bob and the admin carol, and a data set of alice."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    made = copied(tmp_path_factory.mktemp("door") / "home")
    with server(made.home) as started:
        yield started, made.home, made.tokens, made.dataset


@pytest.fixture
def served(installation, monkeypatch):
    """The server; this process works on its database."""
    use(monkeypatch, DATA_DIR=str(installation[1]))
    yield installation
    database.dispose()
    get_settings.cache_clear()


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def ask(served, requests, uid=NOBODY):
    """Sends requests from a process of another user. Returns (status, text) for each."""
    process = another_user(uid)
    process.stdin.write(json.dumps({"address": served[0].address, "requests": requests}) + "\n")
    process.stdin.flush()
    return [tuple(answer) for answer in json.loads(process.stdout.readline())]


@cache
def another_user(uid):
    """A process of this user, which ends with the tests."""
    command = [sys.executable, "-I", PROGRAMS / "another_user.py", str(uid)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/")
    atexit.register(process.communicate)
    return process


def one(served, method, path, headers=None, body=None, uid=NOBODY):
    """Sends one request, with an optional JSON body. Returns status and JSON."""
    sent = None if body is None else json.dumps(body)
    headers = {"Content-Type": "application/json", **(headers or {})}
    status, text = ask(served, [[method, path, headers, sent]], uid)[0]
    return status, json.loads(text)


def routes(router, prefix=""):
    """Yields (path, methods) of every route, also Gradio's; path parameters become `x`."""
    for route in router.routes:
        inner = getattr(route, "original_router", None) or getattr(route, "app", None)
        path = prefix + (getattr(route, "path", "") or "")
        if getattr(route, "methods", None):
            yield re.sub(r"{[^}]*}", "x", path), route.methods
        elif hasattr(inner, "routes"):
            yield from routes(inner, path)


def test_every_route_refuses_another_user_without_a_token(served):
    found_routes = sorted({(method, path) for path, methods in routes(application()) for method in methods})
    assert len(found_routes) > 60
    assert {"/api/runs", "/gradio_api/run/x", "/gradio_api/file=x", "/config", "/", "/new"} <= {
        path for _, path in found_routes
    }
    asked = [(method, path) for method, path in found_routes if path not in OPEN]
    asked += [
        ("GET", "/nothing"),
        ("POST", "/nothing"),
        ("OPTIONS", "/api/runs"),
        ("PUT", "/"),
        ("POST", "/gradio_api/run/predict"),
    ]
    answers = ask(served, [[method, path, {}, "{}" if method == "POST" else None] for method, path in asked])
    let_in = [(place, status) for place, (status, _) in zip(asked, answers, strict=True) if status != 401]
    assert let_in == []


def test_routes_open_to_everybody(served):
    health, page = ask(served, [["GET", "/healthz", {}, None], ["GET", "/sign-in", {}, None]])
    assert health == (200, '{"status":"ok"}')
    assert page[0] == 200
    assert 'action="/sign-in"' in page[1]
    assert "/static/" not in page[1]


def test_headers_of_another_user_do_not_grant_access(served, subtests):
    for headers in (
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic cm9vdDpyb290"},
        {"Cookie": "lathe-00000000=x"},
        {"X-Forwarded-For": "127.0.0.1"},
        {"X-Forwarded-User": "local"},
        {"X-Remote-User": "local"},
    ):
        with subtests.test(str(headers)):
            assert one(served, "GET", "/api/runs", headers)[0] == 401


def test_every_other_user_of_the_machine_needs_a_token(served, subtests):
    for uid in (1, 4242, NOBODY):
        with subtests.test(str(uid)):
            assert one(served, "GET", "/api/runs", uid=uid)[0] == 401


def test_the_server_s_user_needs_nothing(served):
    assert one(served, "GET", "/api/runs", uid=0)[0] == 200


def test_a_request_through_a_proxy_is_not_the_server_s_user(served, subtests):
    """Otherwise a proxy run by that user would grant access to everybody."""
    for header in ("X-Forwarded-For", "X-Forwarded-Proto", "Forwarded", "Via", "X-Real-IP", "x-forwarded-host"):
        with subtests.test(header):
            assert one(served, "GET", "/api/runs", {header: "10.0.0.1"}, uid=0)[0] == 401


def test_an_account_s_token_grants_access(served):
    for name in ("alice", "bob", "carol"):
        assert one(served, "GET", "/api/runs", bearer(served[2][name]))[0] == 200


def test_the_server_s_token_grants_access(served):
    token = (served[1] / TOKEN_FILE).read_text().strip()
    assert one(served, "GET", "/api/runs", bearer(token))[0] == 200


def test_files_with_tokens_are_private(served):
    files = [path for path in served[1].iterdir() if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert served[1].stat().st_mode & 0o777 == 0o700


def new_run(owner, dataset):
    run = PlayedRun(data=dataset).id
    with database.write() as session:
        row = session.get(Run, run)
        row.owner = owner
        session.add(row)
    return run


def test_only_owner_and_admins_stop_and_resume_a_run(served):
    for name, allowed in (("bob", False), ("alice", True), ("carol", True)):
        run = new_run("alice", served[3])
        for change, becomes in (("stop", "stopped"), ("resume", "queued")):
            status, body = one(served, "POST", f"/api/runs/{run}/{change}", bearer(served[2][name]))
            if allowed:
                assert (status, body["status"]) == (200, becomes)
            else:
                assert (status, body["error"]["field"], body["error"]["value"]) == (403, "run", run)
                assert "belongs to alice" in body["error"]["message"]
                assert "alice or an admin" in body["error"]["fix"]
        with database.read() as session:
            assert session.get(Run, run).status == "queued"


def test_everybody_sees_every_run_with_its_owner(served):
    run = new_run("alice", served[3])
    assert one(served, "GET", f"/api/runs/{run}", bearer(served[2]["bob"]))[1]["owner"] == "alice"


def test_only_owner_and_admins_remove_and_map_a_data_set(served):
    headers, path = bearer(served[2]["bob"]), f"/api/datasets/{served[3]}"
    status, body = one(served, "DELETE", path, headers)
    assert (status, body["error"]["field"], body["error"]["value"]) == (403, "dataset", served[3])
    status, body = one(served, "PATCH", path, headers, {"columns": "prompt=prompt, completion=completion"})
    assert (status, body["error"]["field"]) == (403, "dataset")
    with database.read() as session:
        row = session.get(Dataset, served[3])
    assert (row.owner, row.columns_map) == ("alice", None)


def test_a_queued_run_belongs_to_its_user(served):
    body = {"model": "static/starter", "data": served[3], "max_steps": 1}
    status, run = one(served, "POST", "/api/runs", bearer(served[2]["bob"]), body)
    assert (status, run["owner"]) == (201, "bob")
    status, run = one(served, "POST", "/api/runs", None, body, uid=0)
    assert (status, run["owner"]) == (201, "local")


@pytest.mark.parametrize("name", ["bob", "carol"])
def test_an_account_cannot_use_files_of_the_server(served, name):
    """This includes admins: the server's files belong to the user who runs it."""
    secret = served[1].parent / "secret"
    secret.mkdir(exist_ok=True)
    (secret / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "hidden_size": 4242}')
    (secret / "rows.jsonl").write_text('{"prompt": "one", "completion": "two"}\n')
    (secret / "zero.json").write_text('{"zero_optimization": {"stage": 2}}')
    fine = {"model": "static/starter", "data": served[3]}
    asked = [
        ("/api/runs", {"data": str(secret / "rows.jsonl")}, "data"),
        ("/api/runs", {"validation_data": str(secret / "rows.jsonl")}, "validation_data"),
        ("/api/runs", {"model": str(secret)}, "model"),
        ("/api/runs", {"model": "../secret"}, "model"),
        ("/api/runs", {"deepspeed_config": str(secret / "zero.json"), "strategy": "zero2"}, "deepspeed_config"),
        (
            "/api/runs",
            {"deepspeed_config": '{"tensorboard": {"enabled": true, "output_path": "/root"}}', "strategy": "zero2"},
            "deepspeed_config",
        ),
        ("/api/runs", {"nvme_path": "/root", "strategy": "zero3", "offload_optimizer": "nvme"}, "nvme_path"),
        ("/api/forecasts", {"model": str(secret)}, "model"),
    ]
    for path, changes, field in asked:
        status, answer = one(served, "POST", path, bearer(served[2][name]), fine | changes)
        assert (status, answer["error"]["field"]) == (422, field), (path, changes)
        assert answer["error"]["fix"]
    status, answer = one(served, "POST", f"/api/diagnoses?model={secret}", bearer(served[2][name]), {"log": "x"})
    assert (status, answer["error"]["field"]) == (422, "model")
    assert "4242" not in json.dumps(answer)


def test_existing_and_missing_models_get_the_same_refusal(served):
    answers = []
    for name in ("/etc", "/etd"):
        body = {"model": name, "data": served[3]}
        answers.append(json.dumps(one(served, "POST", "/api/runs", bearer(served[2]["bob"]), body)).replace(name, ""))
    assert answers[0] == answers[1]


def test_removed_accounts_and_old_tokens_lose_access_at_once(served):
    with database.write() as session:
        first = accounts.add(session=session, name="dave")
    assert one(served, "GET", "/api/runs", bearer(first))[0] == 200
    with database.write() as session:
        second = accounts.rotate(session=session, name="dave")
    assert [one(served, "GET", "/api/runs", bearer(token))[0] for token in (first, second)] == [401, 200]
    with database.write() as session:
        accounts.remove(session=session, name="dave")
    assert one(served, "GET", "/api/runs", bearer(second))[0] == 401


def test_no_token_is_in_the_database(served):
    stored = b"".join(path.read_bytes() for path in served[1].glob("lathe.db*"))
    assert not any(token.encode() in stored for token in served[2].values())


def test_no_page_handler_uses_gradio_s_queue(served):
    """The queue's tasks do not know the user of the request."""
    config = one(served, "GET", "/config", uid=0)[1]
    assert not any(item["queue"] for item in config["dependencies"])
    body = {"fn_index": config["dependencies"][0]["id"], "data": [], "session_hash": "x"}
    assert one(served, "POST", "/gradio_api/queue/join", None, body, uid=0)[0] == 404
