"""No account sends code, by whichever request, and whether or not anything names it."""

import contextvars
import io
import json
import re
from zipfile import ZipFile

import pytest
from played_run import PlayedRun
from sqlmodel import select
from web import account, client

from app.access import callers
from app.access.callers import Caller
from app.pages.common import form
from app.pages.new_sweep.typed import sweep_of
from training.config.fields import ConfigError
from worker.archives import run_archive
from worker.store import database, runs
from worker.store.tables import Run, Status

CODE = "def score(prompt, answer, expected):\n    return 1\n"
LONG = "(" * 400_000  # minutes for a parser
REFUSED = "is code, which only the user who runs the server may run."
SENT_CODE = re.compile(r"\b(code|Python|script)\b", re.IGNORECASE)


@pytest.fixture
def api(home):
    return client()


@pytest.fixture
def alice(home):
    return account("alice")


@pytest.fixture
def data(api, alice):
    rows = b'{"prompt": "one", "completion": "two"}\n' * 20
    return api.post("/api/datasets?name=rows.jsonl", content=rows, headers=alice).json()["id"]


@pytest.fixture
def run(home):
    """A finished run of alice."""
    played = PlayedRun("hers").claim()
    played.end(summary={"train_seconds": 1.0})
    with database.write() as session:
        session.get_one(Run, played.id).owner = "alice"
    return played.id


def resolved(document, schema):
    return document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]] if "$ref" in schema else schema


def forms(document):
    """Every form of a JSON body, with its requests."""
    found = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            media = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if media:
                found.setdefault(media["schema"]["$ref"].rsplit("/", 1)[1], []).append((method, path))
    return {name: (document["components"]["schemas"][name], sent) for name, sent in found.items()}


def places(document, schema):
    """Where a form takes code: its fields that do, and settings within its objects."""
    for name, field in schema["properties"].items():
        if name in ("own", "reward_code"):
            yield (name,)
        options = [resolved(document, one) for one in field.get("anyOf", [field])]
        if any(one.get("type") == "object" and takes_anything(one) for one in options):
            yield name, "reward_code"


def takes_anything(schema):
    values = schema.get("additionalProperties")
    return values is True or (isinstance(values, dict) and "type" not in values)


def body(place, code, beside):
    *outer, last = place
    value = {"re2.py": code} if last == "own" else [code] if outer == ["space"] else code
    inner = dict(beside.get(outer[0], {})) if outer else {}
    return beside | ({outer[0]: inner | {last: value}} if outer else {last: value})


def test_every_request_that_can_carry_code_refuses_it_from_an_account(api, alice, data, run):
    document = api.get("/api/openapi.json").json()
    settings = {"model": "static/starter", "data": data}
    beside = {
        "RunConfig": settings,
        "SweepSpec": {"config": settings, "space": {"lora_r": [4, 8]}},
        "AskedTrial": {"rewards": "exact_match", "data": data},
        "Asked": {"metrics": ["f1", '{"name": "re2.py:score", "reward": "length"}'], "data": data},
    }
    sent = 0
    for name, (schema, requests) in forms(document).items():
        for place in places(document, schema):
            for method, path in requests:
                for code in (CODE, LONG):
                    for values in ({}, beside[name]):
                        answer = api.request(
                            method, path.format(run_id=run), json=body(place, code, values), headers=alice
                        )
                        assert answer.status_code == 422, (path, place, answer.text[:300])
                        problems = answer.json()["problems"]
                        assert {one["message"] for one in problems} == {REFUSED}, (path, place, problems)
                        sent += 1
    assert sent >= 48
    with database.read() as session:
        assert [one.id for one in session.exec(select(Run))] == [run]


def test_no_form_has_another_field_for_code(api):
    document = api.get("/api/openapi.json").json()
    named = {
        field
        for schema, _ in forms(document).values()
        for field, about in schema["properties"].items()
        if SENT_CODE.search(about.get("description", ""))
    }
    assert named == {"own", "reward_code"}


def test_the_user_of_the_server_sends_code(api, data):
    body = {"rewards": "own.py:score", "own": {"own.py": CODE}, "data": data}
    assert [row["total"] for row in api.post("/api/rewards", json=body).json()["rows"]] == [1.0] * 20
    for file, message in (("re2.py", "is the name of a module"), ("a-b.py", "is not the name of a Python module")):
        refused = api.post("/api/rewards", json=body | {"rewards": f"{file}:score", "own": {file: CODE}}).json()
        assert message in refused["error"]["message"]
    refused = api.post("/api/rewards", json=body | {"own": body["own"] | {"more.py": CODE}}).json()
    assert refused["error"]["message"] == "has code of no reward."


def as_alice(call, *given):
    """What a handler of a page answers to alice."""

    def called():
        callers.begin(Caller("alice"))
        return call(*given)

    return contextvars.copy_context().run(called)


def test_the_pages_refuse_code_of_an_account_unread(home, data):
    for code in (CODE, LONG):
        for values in ({}, {"task": "grpo", "rewards": "score"}, {"task": "sft"}):
            typed = form.defaults() | {"model": "static/starter", "data": data, "reward_code": code} | values
            assert [problem.message for problem in as_alice(form.check, typed)] == [REFUSED]
    config = f"model: m\ndata: {data}\n"
    for configuration, varied in (
        (f"{config}reward_code: |\n  x = 1\n  y = 2\n", [("lora_r", "4, 8")]),
        (config, [("reward_code", "a; b")]),
    ):
        with pytest.raises(ConfigError, match="is code"):
            as_alice(sweep_of, configuration, "grid", varied, {})


def test_an_archive_with_code_is_not_imported_by_an_account(api, alice):
    played = PlayedRun("theirs", task="grpo", rewards="score", reward_code=CODE).claim()
    played.end(Status.STOPPED)
    archive = b"".join(run_archive.packed(played.id))
    with database.write() as session:
        runs.delete(session=session, run_id=played.id)
    refused = api.post("/api/archives", content=archive, headers=alice)
    assert refused.status_code == 422
    assert "reward_code" in refused.text and "is code" in refused.text
    assert api.post("/api/archives", content=archive).status_code == 201


def test_an_archive_whose_evaluation_has_code_is_not_imported_by_an_account(api, alice):
    played = PlayedRun("theirs").claim()
    played.end(Status.STOPPED)
    packed = io.BytesIO(b"".join(run_archive.packed(played.id)))
    request = {"path": "x", "metrics": ["own.py:score"], "own": {"own.py": CODE}}
    with ZipFile(packed, "a") as archive:
        archive.writestr(run_archive.EVALUATIONS, json.dumps({"request": request}) + "\n")
    with database.write() as session:
        runs.delete(session=session, run_id=played.id)
    refused = api.post("/api/archives", content=packed.getvalue(), headers=alice)
    assert refused.status_code == 422
    assert "is code" in refused.text


def test_an_admin_neither_clones_nor_resumes_the_code_of_the_user_of_the_server(api, home, data):
    carol = account("carol", admin=True)
    played = PlayedRun("owners", task="grpo", rewards="score", reward_code=CODE, data=data).claim()
    played.end(Status.STOPPED)
    config = api.get(f"/api/runs/{played.id}", headers=carol).json()["config"]
    cloned = api.post(f"/api/runs?parent={played.id}", json=config, headers=carol)
    resumed = api.post(f"/api/runs/{played.id}/resume", headers=carol)
    for refused in (cloned, resumed):
        assert (refused.status_code, refused.json()["error"]["message"]) == (422, REFUSED)
