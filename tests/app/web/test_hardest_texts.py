"""No text of a request stops the server or fills its memory, whatever it is: each field of the OpenAPI document gets the hardest
inputs that its limit allows."""

import json
import re
from contextlib import suppress

import httpx
import pytest
from hardest import hardest, measured, one_of_hardest, wide_object, without_hub  # noqa: F401
from openapi_fields import Document, placed
from prepared import prepared_installation  # noqa: F401
from web import client

from app.web.security import ADDRESS_LIMIT, BODY_LIMIT

pytestmark = pytest.mark.slow

ENDLESS = {"/api/runs/{run_id}/stream"}


def limit_of(field):
    """Characters that a text may have: those of its field, else those of an address or a body."""
    if field.where in ("path", "query"):
        return min(field.schema.get("maxLength", ADDRESS_LIMIT), ADDRESS_LIMIT - 200)
    if field.where == "header":
        return field.schema.get("maxLength", 8192)
    return field.schema.get("maxLength", BODY_LIMIT - 2000)


def text_fields(document):
    """Each text field once: settings of a run with /api/checks, which parses and checks them all."""
    for field in document.fields():
        of_run = (document.body_schema(field.method, field.path) or {}).get("$ref", "").endswith("/RunConfig")
        again = of_run and field.where == "json" and field.path != "/api/checks"
        if field.is_text and not again and field.path not in ENDLESS:
            yield field


def request(document, prepared, field, text):
    """The arguments of a request with a text in a field."""
    ids = {"run_id": prepared.finished, "dataset_id": prepared.dataset, "sweep_id": prepared.sweep, "listed": "runs"}
    ids |= {"object_id": prepared.finished, "evaluation_id": prepared.base, "served_id": prepared.served, "row": "1"}
    ids |= {"form": "csv"}
    if field.where == "path":
        ids |= {
            field.place[0]: httpx.URL("/", params={"": text}).query.decode()[1:].replace("+", "%20")[: limit_of(field)]
        }
    address = re.sub(r"{(\w+)}", lambda name: ids.get(name[1], "1"), field.path)
    sent = {"params": {}, "headers": {}}
    if field.where == "query":
        sent["params"] = {field.place[0]: text}
    if field.where == "header":
        sent["headers"] = {field.place[0]: re.sub(r"[^ -~]", "a", text)}
    if field.where == "body":
        sent |= {"content": text.encode()}
        if field.path.startswith("/api/datasets"):
            sent["params"] = {"name": "rows.jsonl"}
    schema = document.body_schema(field.method, field.path)
    if schema is not None:
        body = document.example(schema)
        if field.path == "/api/checks":
            body = {"model": "static/starter", "data": prepared.dataset}
        body = placed(body, field.place, text) if field.where == "json" else body
        sent |= {"content": json.dumps(body, ensure_ascii=False).encode()}
        sent["headers"] |= {"Content-Type": "application/json"}
    return {"method": field.method, "url": address, **sent}


def generated(prepared, inputs):
    """A request for each text field and each of its inputs; `inputs` maps the field's number and limit to them."""
    document = Document(client().app.openapi())
    for number, field in enumerate(text_fields(document)):
        for name, text in inputs(number, limit_of(field)):
            with suppress(httpx.InvalidURL):  # what no client can send
                asked = request(document, prepared, field, text)
                httpx.URL(asked["url"], params=asked["params"] or None)
                yield f"{field.name} ({name})", asked


def test_each_text_field_takes_one_of_the_hardest_inputs(prepared, offline):
    requests = [*generated(prepared, one_of_hardest)]
    assert len(requests) > 170
    assert measured(requests) == {}


@pytest.mark.nightly
def test_each_text_field_takes_all_of_the_hardest_inputs(prepared, offline):
    assert measured(generated(prepared, lambda _, length: hardest(length))) == {}


def attacks():
    """What stopped the server: a request of less than a body's limit each."""
    run = {"model": "static/starter", "data": "none"}
    wide = "[" + "1," * 95_000 + "]"
    code = "def f(a, b, c):\n    return " + "-" * 80 + "1\n"
    yield "/api/checks", run | {"deepspeed_config": wide_object(900_000)}
    yield "/api/checks", run | {"deepspeed_config": {f"k{number}": number for number in range(60_000)}}
    yield "/api/checks", run | {f"k{number}": number for number in range(60_000)}
    yield "/api/checks", run | {"task": "grpo", "rewards": "f", "reward_code": code * 30_000}
    yield "/api/checks", run | {"method_options": "r=[" + "1," * 60_000 + "]"}
    yield "/api/checks", run | {"data": "a, weight=3" + " " * 500_000 + "x"}
    yield "/api/rewards", {"rewards": "exact_match", "data": "none", "own": {"own.py": code * 8_000}}
    yield "/api/imports", f"base_model: {wide}"
    yield "/api/imports", f"base_model: m\nlora_target_modules: {wide}"
    yield "/api/imports", "python train.py " + "--a b " * 150_000
    yield "/api/forecasts", [[]] * 1_000_000


def test_the_requests_that_stopped_the_server_do_not(prepared, offline):
    client().post(
        "/api/checks", json={"model": "static/starter", "data": "none", "deepspeed_config": {"a": 1}}
    )  # imports
    requests = [
        (
            f"{number} {path}",
            {
                "method": "post",
                "url": path,
                "content": body if isinstance(body, str) else json.dumps(body).encode(),
                "headers": {"Content-Type": "text/plain" if isinstance(body, str) else "application/json"},
            },
        )
        for number, (path, body) in enumerate(attacks())
    ]
    assert measured(requests) == {}


def test_every_text_field_declares_its_limit(home):
    """A new field has to be bounded where it is declared."""
    fields = [field for field in text_fields(Document(client().app.openapi())) if field.where in ("json", "query")]
    assert len(fields) > 100
    free = [field for field in fields if "maxLength" not in field.schema and field.schema.get("type") == "string"]
    assert [field.name for field in free] == []
