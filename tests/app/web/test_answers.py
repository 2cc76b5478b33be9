"""Every REST answer has a form in the OpenAPI document, and real answers have these forms."""

import json
import re

import pytest
from fastapi.routing import APIRoute
from played_run import PlayedRun
from prepared import LOG, STARTER, prepared_installation  # noqa: F401
from pydantic import TypeAdapter
from suite_parts import CASES
from web import client

from app.documents import ErrorAnswer
from app.documents.before_run import ConfigCheck, ForecastAnswer, Translation
from app.web.rest.openapi import operations
from worker.datasets import datasets, token_stores
from worker.disk import background, usage
from worker.settings import get_settings
from worker.store import database, served_models

ROWS = "".join(json.dumps({"prompt": f"{n}", "completion": f"{n + 1}"}) + "\n" for n in range(20))
QUERIES = {
    "/api/system/runs": "ids={run},{failed}",
    "/api/compare": "runs={run},{failed}",
    "/api/compare/series": "runs={run},{failed}",
}
QUERIES |= dict.fromkeys(
    ["/api/datasets/{dataset_id}/tokens", "/api/datasets/{dataset_id}/rows/{row}/tokens"], f"model={STARTER}"
)
MORE = [
    "/api/runs/{run_id}/log?level=error&rank=1",
    "/api/datasets/{dataset_id}/rows?search=1",
    "/api/system?wait=true",
    "/api/runs?limit=1",
]
"""The same routes with parameters that change the form of the answer."""


@pytest.fixture
def api(home, tmp_path, monkeypatch):
    monkeypatch.setattr(usage, "model_caches", lambda: [tmp_path / "models"])
    yield client()
    background.disk().wait()


@pytest.fixture
def installation(api, prepared, tmp_path, monkeypatch):
    """The ids of an installation with everything that an answer can contain."""
    (tmp_path / "rows.jsonl").write_text(ROWS)
    monkeypatch.setenv("LATHE_DATA_FOLDERS", str(tmp_path))
    get_settings.cache_clear()
    running = PlayedRun("running").claim("node1/cuda:0")
    run = prepared.finished
    kept = api.post("/api/prompt-sets", json={"name": "kept", "prompts": [{"system": "", "user": "one"}]}).json()
    given = api.post(f"/api/prompt-sets/{kept['id']}/answers", json={"model": run, "answers": [{"text": "two"}]})
    assert given.json()["answers"] == {run: [{"text": "two"}]}
    channel = api.post("/api/notifications", json={"address": "http://127.0.0.1:9/nobody"}).json()
    assert api.post(f"/api/notifications/{channel['id']}/test").json()["reason"]
    shared = api.post("/api/diagnoses", params={"share": True}, content=LOG).json()["shared"]
    started = api.post("/api/datasets/imports", json={"file": f"{tmp_path.name}/rows.jsonl"})
    assert started.status_code == 202, started.text
    with database.read() as session:
        item = datasets.get(session=session, dataset_id=prepared.dataset)
    token_stores.wait(
        lambda: token_stores.measure(datasets.path_of(item), item.sha256, str(STARTER), rows=item.rows, retry=True)
    )
    return {
        "run": run,
        "failed": prepared.failed,
        "running": running.id,
        "run_id": run,
        "dataset_id": item.id,
        "evaluation_id": prepared.result,
        "sweep_id": prepared.sweep,
        "diagnosis_id": shared["id"],
        "import_id": started.json()["id"],
        "form": "json",
        "result_form": api.post(f"/api/runs/{run}/builds/merged").json()["form"],
        "served_id": served(f"{run}:base"),
        "suite_id": api.post(f"/api/runs/{run}/suites", json={"cases": CASES}).json()["id"],
        "listed": "datasets",
        "object_id": item.id,
        "row": 1,
    }


def served(name):
    """The id of a model that waits for a process."""
    with database.write() as session:
        return served_models.create(session=session, models=[name], owner="local").id


def json_routes(api):
    """The GET routes that answer JSON, with the form of the answer."""
    included = (getattr(one, "original_router", one) for one in api.app.routes)
    routes = [route for one in included for route in getattr(one, "routes", [one]) if isinstance(route, APIRoute)]
    return {
        route.path: route.response_model or route.responses[200]["model"]
        for route in routes
        if "GET" in route.methods
        and route.include_in_schema
        and (route.response_model or "model" in route.responses.get(200, {}))
    }


def check(api, address, form):
    answer = api.get(address)
    assert answer.status_code == 200, (address, answer.text)
    kept = TypeAdapter(form).validate_python(answer.json()).model_dump(mode="json", exclude_unset=True)
    assert kept == answer.json(), address  # a value that the form lacks would be missing


def test_every_answer_of_a_get_route_has_its_form(api, installation):
    forms = json_routes(api)
    described = {
        path
        for path, item in api.app.openapi()["paths"].items()
        if "application/json" in item.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
    }
    assert forms.keys() == described
    for path, form in forms.items():
        query = QUERIES.get(path, "").format(**installation)
        check(api, f"{path.format(**installation)}?{query}", form)
    for address in MORE:
        check(api, address.format(**installation), forms[address.partition("?")[0]])
    for name in ("failed", "running"):
        check(api, f"/api/runs/{installation[name]}", forms["/api/runs/{run_id}"])
    check(api, f"/api/runs/{installation['failed']}/diagnosis", forms["/api/runs/{run_id}/diagnosis"])


@pytest.mark.parametrize("changes", [{}, {"data": "none.csv"}, {"strategy": "zero2"}])
def test_answers_to_checks_translations_and_forecasts_have_their_forms(api, tmp_path, changes):
    (tmp_path / "rows.jsonl").write_text(ROWS)
    settings = {"model": str(STARTER), "data": str(tmp_path / "rows.jsonl")} | changes
    checked = api.post("/api/checks", json=settings).json()
    assert (ConfigCheck.model_validate(checked).ready, checked["global_batch_size"] > 0) == (not changes, True)
    forecast = api.post("/api/forecasts", json=settings | {"strategy": "single"}, params={"gpu": "h100"}).json()
    translated = api.post("/api/imports", content="finetuning_type: lora\nmodel_name_or_path: m\n").json()
    for form, answer in ((ConfigCheck, checked), (ForecastAnswer, forecast), (Translation, translated)):
        assert form.model_validate(answer).model_dump(mode="json", exclude_unset=True) == answer
    assert api.get("/api/runs").json()["total"] == api.get("/api/datasets").json()["total"] == 0


def empty(schema):
    return not schema or schema in ({"type": "object"}, {"type": "object", "additionalProperties": True})


def test_no_answer_has_an_empty_form(api):
    document = api.app.openapi()
    for path, operation in operations(document):
        answered = {code: answer for code, answer in operation["responses"].items() if code[0] == "2"}
        assert answered, path
        for code, answer in answered.items():
            schemas = [content.get("schema") for content in answer.get("content", {}).values()]
            assert code == "204" or schemas, (path, code)
            assert not any(empty(schema) for schema in schemas), (path, code)
            assert answer["description"] != "Successful Response" or code == "204", path


def test_every_form_is_described(api):
    schemas = api.app.openapi()["components"]["schemas"]
    assert [name for name, schema in schemas.items() if not schema.get("description") and "enum" not in schema] == []


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/nothing", 404),
        ("PUT", "/api/nothing", 404),
        ("PUT", "/api/runs", 405),
        ("QUERY", "/api/runs", 405),
        ("DELETE", "/api/queue", 405),
        ("POST", "/api/runs/abcd1234", 405),
        ("GET", "/api/runs/abcd1234", 404),
        ("GET", "/api/runs?limit=many", 422),
        ("POST", "/api/datasets/imports", 422),
        ("GET", f"/api/runs?offset={2**64}", 422),
        ("GET", f"/api/datasets?offset={2**64}", 422),
        ("GET", f"/api/runs/abcd1234/log?after={2**64}", 422),
        ("GET", f"/api/runs/abcd1234/series?last_step={2**64}", 422),
        ("GET", "/api/compare/series?runs=abcd&start=inf", 422),
        ("POST", "/api/forecasts?host_memory=inf", 422),
        ("GET", "/api/datasets/imports/none", 422),
        ("GET", "/api/datasets/imports/99999999", 404),
        ("GET", "/api/diagnoses/0123456789abcdef", 404),
    ],
)
def test_every_refusal_has_the_form_of_errors(api, method, path, status):
    answer = api.request(method, path)
    assert answer.status_code == status, answer.text
    problem = ErrorAnswer.model_validate(answer.json()).error
    assert problem.field and problem.message and problem.fix
    assert set(re.findall(r"\w+", answer.headers.get("allow", ""))) == set(
        re.findall(r"[A-Z]{3,}", problem.fix if status == 405 else "")
    )


def test_a_failure_of_the_server_has_the_form_of_errors(home, monkeypatch):
    from starlette.testclient import TestClient

    from app.documents import queue

    def fail(_session):
        raise RuntimeError("a secret of the server")

    monkeypatch.setattr(queue, "document", fail)
    api = client()
    quiet = TestClient(api.app, base_url=str(api.base_url), headers=api.headers, raise_server_exceptions=False)
    answer = quiet.get("/api/queue")
    assert (answer.status_code, answer.json()["error"]["message"]) == (500, "failed with RuntimeError.")
    assert "secret" not in answer.text


def test_a_model_whose_name_no_hub_permits_is_refused(api):
    refused = api.post("/api/forecasts", json={"model": "\u00d44Ouj-"})
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "model")
