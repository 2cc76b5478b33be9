"""Who may come in: the server's own user without a word, everybody else with a token; and who may change what."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from played_run import PlayedRun
from web import application, site

from app.tokens import TOKEN_FILE
from worker import accounts, database, datasets
from worker.models import Dataset, Run

NOBODY = 65534
OPEN = {"/healthz", "/sign-in"}
PAGE = {"Accept": "text/html"}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server as root runs it, with accounts for alice, bob and the admin carol, and a data set of alice's."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    home = tmp_path_factory.mktemp("door") / "home"
    with site(home) as started:
        with database.write() as session:
            tokens = {
                name: accounts.add(session=session, name=name, admin=name == "carol")
                for name in ("alice", "bob", "carol")
            }
        rows = home.parent / "rows.jsonl"
        rows.write_text('{"prompt": "one", "completion": "two"}\n' * 20)
        added = datasets.add_file(path=rows, name="rows.jsonl", owner="alice")
        yield started, home, tokens, added.id
        database.dispose()


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def ask(served, requests, uid=NOBODY):
    """The answers, each (status, text), to requests of a process of another user."""
    given = {"address": served[0].address, "uid": uid, "requests": requests}
    program = Path(__file__).with_name("another_user.py")
    done = subprocess.run(
        [sys.executable, "-I", program], input=json.dumps(given), capture_output=True, text=True, check=True, cwd="/"
    )
    return [tuple(answer) for answer in json.loads(done.stdout)]


def one(served, method, path, headers=None, body=None, uid=NOBODY):
    """The status and the JSON of one request; a body is sent as JSON."""
    sent = None if body is None else json.dumps(body)
    headers = {"Content-Type": "application/json", **(headers or {})}
    status, text = ask(served, [[method, path, headers, sent]], uid)[0]
    return status, json.loads(text)


def routes(router, prefix=""):
    """Every route of the application, Gradio's too: (path, methods), with `x` in the place of what varies."""
    for route in router.routes:
        inner = getattr(route, "original_router", None) or getattr(route, "app", None)
        path = prefix + (getattr(route, "path", "") or "")
        if getattr(route, "methods", None):
            yield re.sub(r"{[^}]*}", "x", path), route.methods
        elif hasattr(inner, "routes"):
            yield from routes(inner, path)


def test_another_user_without_a_token_gets_nothing_from_any_route(served):
    found = sorted({(method, path) for path, methods in routes(application()) for method in methods})
    assert len(found) > 60
    assert {"/api/runs", "/gradio_api/run/x", "/gradio_api/file=x", "/config", "/", "/new"} <= {
        path for _, path in found
    }
    asked = [(method, path) for method, path in found if path not in OPEN]
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


def test_what_is_open_to_everybody(served):
    health, page = ask(served, [["GET", "/healthz", {}, None], ["GET", "/sign-in", {}, None]])
    assert health == (200, '{"status":"ok"}')
    assert page[0] == 200
    assert 'action="/sign-in"' in page[1]
    assert "/static/" not in page[1]


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic cm9vdDpyb290"},
        {"Cookie": "lathe-00000000=x"},
        {"X-Forwarded-For": "127.0.0.1"},
        {"X-Forwarded-User": "local"},
        {"X-Remote-User": "local"},
    ],
)
def test_what_another_user_says_of_themselves_helps_nothing(served, headers):
    assert one(served, "GET", "/api/runs", headers)[0] == 401


@pytest.mark.parametrize("uid", [1, 4242, NOBODY])
def test_every_other_user_of_the_machine_needs_a_token(served, uid):
    assert one(served, "GET", "/api/runs", uid=uid)[0] == 401


def test_the_server_s_user_needs_nothing(served):
    assert one(served, "GET", "/api/runs", uid=0)[0] == 200


@pytest.mark.parametrize(
    "header", ["X-Forwarded-For", "X-Forwarded-Proto", "Forwarded", "Via", "X-Real-IP", "x-forwarded-host"]
)
def test_what_a_proxy_passes_on_is_not_the_server_s_user(served, header):
    """A proxy of that user's would else let in everybody."""
    assert one(served, "GET", "/api/runs", {header: "10.0.0.1"}, uid=0)[0] == 401


def test_a_token_of_one_s_own_lets_in(served):
    for name in ("alice", "bob", "carol"):
        assert one(served, "GET", "/api/runs", bearer(served[2][name]))[0] == 200


def test_the_server_s_token_lets_in(served):
    token = (served[1] / TOKEN_FILE).read_text().strip()
    assert one(served, "GET", "/api/runs", bearer(token))[0] == 200


def test_files_with_tokens_are_the_owner_s_alone(served):
    files = [path for path in served[1].iterdir() if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert served[1].stat().st_mode & 0o777 == 0o700


def new_run(owner):
    run = PlayedRun().id
    with database.write() as session:
        found = session.get(Run, run)
        found.owner = owner
        session.add(found)
    return run


def test_a_run_is_stopped_and_resumed_by_its_owner_and_by_admins_alone(served):
    for name, allowed in (("bob", False), ("alice", True), ("carol", True)):
        run = new_run("alice")
        for change, becomes in (("stop", "stopped"), ("resume", "queued")):
            status, told = one(served, "POST", f"/api/runs/{run}/{change}", bearer(served[2][name]))
            if allowed:
                assert (status, told["status"]) == (200, becomes)
            else:
                assert (status, told["error"]["field"], told["error"]["value"]) == (403, "run", run)
                assert "belongs to alice" in told["error"]["message"]
                assert "alice or an admin" in told["error"]["fix"]
        with database.read() as session:
            assert session.get(Run, run).status == "queued"


def test_everybody_sees_every_run_with_its_owner(served):
    run = new_run("alice")
    assert one(served, "GET", f"/api/runs/{run}", bearer(served[2]["bob"]))[1]["owner"] == "alice"


def test_a_page_s_handler_changes_nothing_that_is_not_one_s_own(served):
    run = new_run("alice")
    config = one(served, "GET", "/config", bearer(served[2]["bob"]))[1]
    changing = [item for item in config["dependencies"] if item["api_name"] in ("stopped", "resumed", "resumed_lower")]
    assert len(changing) == 3
    for item in changing:
        body = {"fn_index": item["id"], "data": [False, 0.0, None], "session_hash": "bob"}
        path = f"/gradio_api/run/predict?id={run}"
        headers = {**bearer(served[2]["bob"]), "Referer": f"{served[0].address}/run?id={run}"}
        status, told = one(served, "POST", path, headers, body)
        assert (status, told["error"]["field"], told["error"]["value"]) == (403, "run", run)
    with database.read() as session:
        assert session.get(Run, run).status == "queued"


def test_a_data_set_is_removed_and_mapped_by_its_owner_and_by_admins_alone(served):
    """Through the pages' handlers, as the browser calls them."""
    config = one(served, "GET", "/config", bearer(served[2]["bob"]))[1]
    numbers = {}
    for item in config["dependencies"]:
        numbers.setdefault(item["api_name"], item)
    headers = bearer(served[2]["bob"])
    pressed = {
        "fn_index": numbers["pressed"]["id"],
        "data": ["", None],
        "event_data": {"remove": served[3]},
        "session_hash": "b",
    }
    assert one(served, "POST", "/gradio_api/run/predict", headers, pressed)[0] == 200
    removed = {"fn_index": numbers["removed"]["id"], "data": ["", None], "session_hash": "b"}
    status, told = one(served, "POST", "/gradio_api/run/predict", headers, removed)
    assert (status, told["error"]["field"], told["error"]["value"]) == (403, "dataset", served[3])
    save = {"fn_index": numbers["chosen"]["id"], "data": [], "event_data": {"save": True}, "session_hash": "c"}
    status, told = one(served, "POST", f"/gradio_api/run/predict?id={served[3]}", headers, save)
    assert (status, told["error"]["field"]) == (403, "dataset")
    with database.read() as session:
        kept = session.get(Dataset, served[3])
    assert (kept.owner, kept.columns_map) == ("alice", None)


def test_what_somebody_queues_is_theirs(served):
    body = {"model": "static/starter", "data": served[3], "max_steps": 1}
    status, run = one(served, "POST", "/api/runs", bearer(served[2]["bob"]), body)
    assert (status, run["owner"]) == (201, "bob")
    status, run = one(served, "POST", "/api/runs", None, body, uid=0)
    assert (status, run["owner"]) == (201, "local")


@pytest.mark.parametrize("name", ["bob", "carol"])
def test_an_account_names_no_file_of_the_server(served, name):
    """An admin neither: the server's files are those of the user who runs it."""
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
        status, told = one(served, "POST", path, bearer(served[2][name]), fine | changes)
        assert (status, told["error"]["field"]) == (422, field), (path, changes)
        assert told["error"]["fix"]
    status, told = one(served, "POST", f"/api/diagnoses?model={secret}", bearer(served[2][name]), {"log": "x"})
    assert (status, told["error"]["field"]) == (422, "model")
    assert "4242" not in json.dumps(told)


def test_a_model_that_is_there_and_one_that_is_not_are_refused_alike(served):
    answers = []
    for name in ("/etc", "/etd"):
        body = {"model": name, "data": served[3]}
        answers.append(json.dumps(one(served, "POST", "/api/runs", bearer(served[2]["bob"]), body)).replace(name, ""))
    assert answers[0] == answers[1]


def test_a_removed_account_and_a_token_before_the_last_are_out_at_once(served):
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


def test_no_handler_of_a_page_goes_through_gradio_s_queue(served):
    """Whose tasks know no caller."""
    config = one(served, "GET", "/config", uid=0)[1]
    assert not any(item["queue"] for item in config["dependencies"])
    body = {"fn_index": config["dependencies"][0]["id"], "data": [], "session_hash": "x"}
    assert one(served, "POST", "/gradio_api/queue/join", None, body, uid=0)[0] == 404
