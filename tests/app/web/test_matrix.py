"""What each caller may do, generated from the routes: every operation for every kind of caller, and every text field of requests
with what is another user's, a file of the server, an address or code."""

import json
import re
import socket

import pytest
from openapi_fields import ANY, EACH, Document, placed
from owned import (
    BODIES,
    QUERIES,
    SECRET,
    address,
    as_,
    client_of_own,  # noqa: F401
    everything_is_alices,  # noqa: F401
    everything_stored,
    forbidden_words,
    routes,
)
from prepared import prepared_installation  # noqa: F401
from web import application

from app.access import identity
from worker.store import accounts, database

pytestmark = pytest.mark.slow

CANARY = "4242424242"
STREAMS = ("/api/runs/{run_id}/stream", "/api/runs/{run_id}/live")
OTHERS = (
    ("post", "/v1/chat/completions"), ("post", "/v1/completions"), ("post", "/v1/tokenize"), ("get", "/config"), ("get", "/"),
    ("get", "/gradio_api/queue/data?session_hash=x"), ("get", "/gradio_api/heartbeat/x"), ("post", "/gradio_api/run/predict"),
    ("post", "/gradio_api/queue/join"), ("post", "/gradio_api/upload"), ("post", "/gradio_api/cancel"), ("post", "/diagnose"),
    *(("get", path) for path in STREAMS),
)  # fmt: skip
"""Routes that the OpenAPI document leaves out."""
OPEN = {("get", "/healthz")}


def everything(api):
    """Each operation: of the document, and besides; pages and the streams of pages."""
    yield from routes(api)
    yield from OTHERS
    for route in application(visibility="own").routes:
        path = getattr(route, "path", "")
        if path.startswith("/api/pages") or (
            re.fullmatch(r"/\w+", path) and "GET" in (getattr(route, "methods", None) or ())
        ):
            yield "get", path


def rotated(name):
    """The headers of a token that was replaced."""
    with database.write() as session:
        old = accounts.rotate(session=session, name=name)
        accounts.rotate(session=session, name=name)
    return {"Authorization": f"Bearer {old}"}


def test_without_a_valid_token_every_operation_is_refused(api, own, monkeypatch):
    monkeypatch.setattr(identity, "BAD_TOKEN_SECONDS", 0)
    callers = {
        "anonymous": {"Authorization": ""},
        "an unknown token": {"Authorization": "Bearer " + "x" * 43},
        "a rotated token": rotated("alice"),
        "a rotated token of an admin": rotated("carol"),
        "a user that a header names": {"Authorization": "", "X-Forwarded-User": "carol", "Remote-User": "carol"},
    }
    listed, wrong = sorted(set(everything(api)) - OPEN), {}
    for caller, headers in callers.items():
        for method, path in listed:
            answer = api.request(method, address(path, own), headers=headers, follow_redirects=False)
            if answer.status_code != 401:
                wrong[caller, method, path] = answer.status_code
    assert len(listed) > 120
    assert wrong == {}


def test_an_account_with_a_share_sees_that_and_changes_nothing(api, prepared, own):
    for kind, key in (("runs", "run_id"), ("sweeps", "sweep_id"), ("datasets", "dataset_id")):
        shared = api.put(f"/api/{kind}/{own[key]}/shares", json={"users": ["bob"]}, headers=as_(prepared, "alice"))
        assert shared.status_code == 200
    hidden = {prepared.failed, prepared.waiting, prepared.heldout}  # the data of an evaluation of the run
    before, wrong, cells = everything_stored(), {}, 0
    for method, path in routes(api):
        if path in STREAMS or not set(re.findall(r"{(\w+)}", path)) & own.keys():
            continue
        cells += 1
        body = None if method == "get" else BODIES.get(path, {})
        answer = api.request(
            method, address(path, own) + QUERIES.get(path, ""), headers=as_(prepared, "bob"), json=body
        )
        refused = answer.status_code in (403, 404, 422)
        if answer.status_code >= 500 or (method != "get" and not refused and not path.endswith("/rows/stop")):
            wrong[method, path] = answer.status_code, answer.text[:200]
        if leaked := [word for word in hidden if word in answer.text]:
            wrong[method, path] = leaked
    assert cells > 50
    assert wrong == {}
    changed = {name for name, _ in before.keys() ^ everything_stored().keys()}
    assert changed <= {"token_use"}


@pytest.fixture
def secret(tmp_path):
    """A folder of the server's user with rows, a model and an adapter."""
    folder = tmp_path / "secret"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "hidden_size": int(CANARY)}))
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": int(CANARY)}))
    (folder / "rows.jsonl").write_text(f'{{"prompt": "{CANARY}", "completion": "two"}}\n' * 10)
    return folder


@pytest.fixture
def listener():
    """A socket on which nobody may call."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


def requests(document, bases):
    """Each text field with a body in which it alone is given, and with those beside which it has an effect, or none."""
    for field in document.fields():
        if field.where not in ("json", "query") or not field.is_text or field.path in STREAMS:
            continue
        schema = document.body_schema(field.method, field.path)
        of_run = (schema or {}).get("$ref", "").endswith("/RunConfig")
        if of_run and field.path != "/api/checks":
            continue
        body = None if schema is None else document.example(schema)
        for base in (
            bases if of_run else [body] if field.path != "/api/rewards" else [body, body | {"rewards": "exact_match"}]
        ):
            yield field, base


def test_no_text_field_gives_an_account_what_is_not_its_own(
    api, prepared, own, secret, listener, tmp_path, monkeypatch
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    bob, marker = as_(prepared, "bob"), tmp_path / "marker"
    rows = b'{"prompt": "one", "completion": "two"}\n' * 20
    mine = api.post("/api/datasets?name=rows.jsonl", content=rows, headers=bob).json()["id"]
    run = {"model": "static/starter", "data": mine}
    bases = [run, run | {"task": "grpo"}, run | {"task": "distill"}]
    values = {
        "file": str(secret / "rows.jsonl"),
        "folder": str(secret),
        "address": f"http://127.0.0.1:{listener.getsockname()[1]}/v1",
        "run": own["run_id"],
        "data set": own["dataset_id"],
        "code": f"def f(prompt, answer, expected):\n    return 1.0\n\n\nopen({str(marker)!r}, 'w')\n",
    }
    words, wrong, cells = forbidden_words(prepared, own), {}, 0
    before = {row for row, owner in everything_stored().items() if owner in ("alice", "carol", "local")}
    for field, base in requests(Document(api.app.openapi()), bases):
        ids = own | ({"dataset_id": mine} if field.path.startswith("/api/datasets/{") else {})
        for kind, value in values.items():
            cells += 1
            asked = address(field.path, ids)
            if field.where == "query":
                answer = api.request(field.method, asked, params={field.place[0]: value}, json=base, headers=bob)
            else:
                answer = api.request(field.method, asked, json=placed(base, field.place, value), headers=bob)
            sent = f"{asked} {value}"
            leaked = [word for word in words | {CANARY} if word in answer.text and word not in sent]
            is_code = kind == "code" and {"own", "reward_code"} & set(field.place)
            if (
                leaked
                or answer.status_code >= 500
                or (is_code and answer.status_code < 400 and '"ready":true' in answer.text)
            ):
                wrong[field.name, kind] = answer.status_code, leaked, answer.text[:200]
    assert cells > 700
    assert wrong == {}
    assert not marker.exists()
    with pytest.raises(BlockingIOError):
        listener.accept()
    assert before <= everything_stored().keys()
    assert SECRET not in api.get("/api/runs", headers=bob).text


def test_the_fields_of_the_document_are_found():
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "null"}]}}},
    }
    content = {"application/json": {"schema": schema | {"required": ["b"]}}}
    schema["properties"]["b"] = {"type": "object", "additionalProperties": {"type": "string"}}
    document = Document({"paths": {"/x": {"post": {"requestBody": {"content": content}}}}})
    assert [field.place for field in document.fields()] == [("a", EACH), ("b", ANY)]
    assert placed({"b": {}}, ("a", EACH), "x") == {"b": {}, "a": ["x"]}
    assert document.example(content["application/json"]["schema"]) == {"b": {}}
