"""OpenAI's API under /v1 and the REST routes of the playground, without a process that answers."""

import contextvars
import json
from types import SimpleNamespace

import pytest
from played_run import PlayedRun
from run_files import checkpoint, result
from web import account, client

from app.access import callers
from app.access.callers import Caller
from app.web.rest import openai
from training.run_folder.paths import PARITY_FOLDER
from worker.store import accounts, database, prompt_sets, served_models
from worker.store.tables import Status

ASKED = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def api(home, monkeypatch):
    monkeypatch.setattr(openai, "WAIT_SECONDS", 0.0)
    return client()


def stopped_run():
    """A stopped run with a checkpoint that PEFT could load."""
    run = PlayedRun("stopped").claim()
    run.end(Status.STOPPED)
    (checkpoint(run.id, 7) / "adapter_config.json").write_text("{}")
    return run


def test_the_models_are_results_checkpoints_of_stopped_runs_and_bases(api):
    stopped, run = stopped_run(), PlayedRun("done").claim()
    run.end()
    result(run.id)
    checkpoint(run.id, 3)  # of shards that neither PEFT nor transformers loads
    names = [model["id"] for model in api.get("/v1/models").json()["data"]]
    assert sorted(names) == sorted([run.id, f"{run.id}:base", f"{stopped.id}:checkpoint-7", f"{stopped.id}:base"])
    for name in names:
        assert api.get(f"/v1/models/{name}").json()["id"] == name
    assert api.get(f"/v1/models/{run.id}:checkpoint-3").json()["error"]["param"] == "model"
    (base,) = api.get("/api/served").json()["offered"]
    assert sorted(model["name"] for model in base["models"]) == sorted(names)


def test_a_request_starts_the_model_and_is_answered_with_503_until_it_is_ready(api):
    run = stopped_run()
    answer = api.post("/v1/chat/completions", json=ASKED | {"model": f"{run.id}:checkpoint-7"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json()["error"]["type"] == "server_error"
    with database.read() as session:
        (asked,) = served_models.live(session=session)
    assert asked.models == [f"{run.id}:base", f"{run.id}:checkpoint-7"]
    assert api.post("/v1/chat/completions", json=ASKED | {"model": f"{run.id}:base"}).status_code == 503
    with database.read() as session:
        assert [one.id for one in served_models.live(session=session)] == [
            asked.id
        ]  # the same process answers for both


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"model": "nothing"}, 404, "GET /v1/models lists them"),
        ({}, 400, "Send a JSON object with model"),
        ([], 400, "Send a JSON object with model"),
    ],
)
def test_an_unknown_model_is_refused_in_openai_s_form(api, body, status, words):
    answer = api.post("/v1/chat/completions", json=body)
    error = answer.json()["error"]
    code = {400: "bad_request", 404: "model_not_found"}[status]
    assert (answer.status_code, error["param"], error["code"]) == (status, "model", code)
    assert words in error["message"]


@pytest.mark.slow
def test_every_refusal_of_the_endpoint_has_openai_s_form(api):
    for method, path in (("GET", "/v1/models"), ("POST", "/v1/chat/completions")):
        answer = api.request(method, path, headers={"Authorization": "Bearer wrong"})
        assert answer.status_code == 401, path
    refusals = [
        api.get("/v1/models", headers={"Authorization": "Bearer wrong"}),
        api.get("/v1/batches"),
        api.get("/v1/models/nothing"),
        api.get("/v1/chat/completions"),
        api.post("/v1/chat/completions", content=b"{"),
        api.post("/v1/chat/completions", content=b"x" * 5_000_000),
        api.post("/v1/chat/completions", json=ASKED, headers={"Origin": "http://elsewhere.example"}),
    ]
    assert [answer.status_code for answer in refusals] == [401, 404, 404, 405, 400, 413, 403]
    assert refusals[0].json()["error"]["code"] == "invalid_api_key"
    for answer in refusals:
        error = answer.json()["error"]
        assert (type(error["code"]), error["type"]) == (str, "invalid_request_error")
        assert error["message"].startswith(error["param"])


def test_another_user_may_neither_end_a_process_nor_change_a_prompt_set(api):
    run = stopped_run()
    with database.write() as session:
        token = accounts.add(session=session, name="alice")
    served = api.post("/api/served", json={"models": [f"{run.id}:base"]}).json()
    kept = api.post("/api/prompt-sets", json={"name": "kept", "prompts": [{"user": "one"}]}).json()
    alice = {"Authorization": f"Bearer {token}"}
    changed = api.put(f"/api/prompt-sets/{kept['id']}/every-result", json={"every_result": True}, headers=alice)
    assert changed.status_code == 403
    assert api.put(f"/api/prompt-sets/{kept['id']}/every-result", json={"every_result": True}).json()["every_result"]
    for path in (f"/api/served/{served['id']}", f"/api/prompt-sets/{kept['id']}"):
        assert api.delete(path, headers=alice).status_code == 403
        assert api.delete(path).status_code == 204
    assert api.get("/api/served").json()["served"]["reason"] == "Its user ended it."


def test_a_prompt_set_keeps_its_answers_while_prompts_are_added(api):
    first, second = {"user": "one", "system": ""}, {"user": "two", "system": ""}
    kept = api.post("/api/prompt-sets", json={"name": "kept", "prompts": [first]}).json()
    answered = {"model": "run", "answers": [{"text": "1"}]}
    assert api.post(f"/api/prompt-sets/{kept['id']}/answers", json=answered).status_code == 200
    more = api.post("/api/prompt-sets", json={"name": "kept", "prompts": [first, second]}).json()
    assert (more["id"], more["answers"]) == (kept["id"], {"run": [{"text": "1"}]})
    wrong = api.post(f"/api/prompt-sets/{kept['id']}/answers", json=answered)
    assert (wrong.status_code, wrong.json()["error"]["field"]) == (422, "answers")
    changed = api.post("/api/prompt-sets", json={"name": "kept", "prompts": [second]}).json()
    assert changed["answers"] == {}
    refused = api.post("/api/prompt-sets", json={"name": "kept", "prompts": []})
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "prompts")


def test_held_out_rows_are_suggested_with_their_messages(api, home):
    run = stopped_run()
    folder = home / "runs" / run.id / PARITY_FOLDER
    folder.mkdir()
    rows = [
        {
            "row": 4,
            "text": "",
            "expected": [17],
            "expected_text": "2",
            "messages": ASKED["messages"],
            "tools": None,
            "prompt_ids": [],
        }
    ]
    (folder / "rows.json").write_text(json.dumps({"prompts": rows}))
    (shown,) = api.get(f"/api/runs/{run.id}/prompts").json()["suggestions"]
    assert shown == {"messages": ASKED["messages"], "prompt": None, "expected": "2", "label": "row 5"}


HOSTILE_BODIES = {
    "brackets": b'{"model": "m", "messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "depth": b'{"model": "m", "messages": ' + b"[" * 70 + b"]" * 70 + b"}",
    "surrogate": b'{"model": "m\\ud800"}',
    "surrogate in a message": b'{"model": "m", "messages": [{"role": "user", "content": "\\udfff"}]}',
    "NaN": b'{"model": "m", "temperature": NaN}',
    "infinity": b'{"model": "m", "temperature": 1e999}',
    "long integer": b'{"model": "m", "seed": ' + b"9" * 10_000 + b"}",
    "two values": b'{"model": "m"} {"model": "m"}',
    "not UTF-8": b'{"model": "\xff"}',
    "empty": b"",
    "text": b'"model"',
}
HOSTILE_NAMES = (
    "../../../etc/passwd", "/etc/passwd", "RUN:../../x", "RUN:checkpoint-../7", "RUN:checkpoint-7/..", "RUN:base/..",
    "RUN:checkpoint-\u0667", "RUN:checkpoint-" + "9" * 5000, "RUN:checkpoint--7", "RUN\0:base", "%", "_" * 32, "--host",
    "RUN:" + "x" * 10**6, "a" * 10**6, "\x1b[2J", " ", "", None, 5, ["RUN"], {"RUN": 1}, True,
)  # fmt: skip


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/tokenize"])
def test_a_hostile_body_is_refused_in_openai_s_form(api, path, subtests):
    for name, body in HOSTILE_BODIES.items():
        with subtests.test(name):
            answer = api.post(path, content=body)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], bool(error["fix"])) == (400, "bad_request", True), error


def test_a_model_s_name_reaches_no_file(api, subtests):
    run = stopped_run()
    for name in HOSTILE_NAMES:
        with subtests.test(str(name)[:40]):
            given = name.replace("RUN", run.id) if isinstance(name, str) else name
            answer = api.post("/v1/chat/completions", json=ASKED | {"model": given})
            assert answer.status_code in (400, 404), answer.text[:300]
            assert len(answer.content) < 5000
            if isinstance(given, str):
                served = api.post("/api/served", json={"models": [given]})
                assert served.status_code in (404, 422), served.text[:300]
                assert len(served.content) < 5000
    with database.read() as session:
        assert served_models.live(session=session) == []


def test_the_user_in_a_body_gives_an_account_no_turns_of_others():
    def account_of(name, **body):
        callers.begin(Caller(name))
        return openai._client(SimpleNamespace(client=None), body).partition("/")[0]

    bodies = ({}, {"user": "a"}, {"user": "b/c"}, {"safety_identifier": ["x"]})
    assert len({contextvars.copy_context().run(account_of, "eve", **body) for body in bodies}) == 1
    assert len({contextvars.copy_context().run(account_of, name, user="a") for name in ("eve", "bob")}) == 2


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        ({"user": "one", "expected": "1"}, "prompts.1.expected"),
        ({"user": "one", "mode": "speech"}, "prompts.1.mode"),
        ({"user": "one", "mode": ""}, "prompts.1.mode"),
        ({"user": "o\0ne"}, "prompts.1.user"),
        ({"user": "one", "system": "\0"}, "prompts.1.system"),
    ],
)
def test_a_prompt_set_refuses_unknown_keys_and_modes_and_nul(api, prompt, field):
    refused = api.post("/api/prompt-sets", json={"name": "kept", "prompts": [prompt]})
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, field)
    assert api.post("/api/prompt-sets", json={"name": "ke\0pt", "prompts": [{"user": "one"}]}).status_code == 422
    assert api.get("/api/prompt-sets").json()["prompt_sets"] == []


def test_prompt_sets_have_limits_for_each_user(api):
    alice = account("alice")
    one = [{"user": "one"}]
    for wrong in (
        [{"user": "x" * 20_001}],
        one * 201,
        [],
        [{}],
        [{"user": ""}],
        [{"user": "a", "system": "x" * 20_000}],
    ):
        answer = api.post("/api/prompt-sets", json={"name": "a", "prompts": wrong})
        assert (answer.status_code, answer.json()["error"]["field"].startswith("prompt")) == (422, True), answer.text[
            :300
        ]
    for number in range(prompt_sets.MOST_SETS):
        assert api.post("/api/prompt-sets", json={"name": f"set {number}", "prompts": one}).status_code == 201
    assert api.post("/api/prompt-sets", json={"name": "more", "prompts": one}).status_code == 422
    assert api.post("/api/prompt-sets", json={"name": "more", "prompts": one}, headers=alice).status_code == 201
