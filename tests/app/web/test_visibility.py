"""With LATHE_VISIBILITY=own no route, page or handler shows what belongs to another user."""

import inspect
import io
import json
import re
from zipfile import ZipFile

import gradio as gr
import numpy as np
import pytest
from owned import (
    BODIES,
    ENDLESS,
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
from played_run import SUMMARY, PlayedRun
from prepared import prepared_installation  # noqa: F401
from safetensors.numpy import save_file
from sqlmodel import select, update
from web import client

from app.web import live
from app.web.addresses import PAGES
from worker.settings import get_settings
from worker.store import database, evaluations, shares, sight
from worker.store.runs import RunNotFound
from worker.store.tables import DeviceLease, Evaluation, Run

pytestmark = pytest.mark.slow


def test_no_route_answers_another_account_with_what_is_alices(api, prepared, own, subtests):
    words = forbidden_words(prepared, own)
    for method, path in routes(api):
        asked = address(path, own) + QUERIES.get(path, "")
        body = None if method == "get" else BODIES.get(path, {})
        with subtests.test(f"{method} {path}"):
            answer = api.request(method, asked, headers=as_(prepared, "bob"), json=body)
            if set(re.findall(r"{(\w+)}", path)) & own.keys():
                assert answer.status_code in (403, 404), answer.text[:500]
            assert not [word for word in words if word in answer.text and word not in asked], answer.text[:500]


def test_the_live_stream_of_another_account_s_run_does_not_begin(own):
    with sight.everything():
        sight.limit_to("bob")
        with pytest.raises(RunNotFound):
            live.existing(own["run_id"])
        sight.limit_to("alice")
        assert live.existing(own["run_id"]).owner == "alice"


def test_their_owner_and_an_admin_get_what_they_ask_for(api, prepared, own, subtests):
    for method, path in routes(api):
        parameters = set(re.findall(r"{(\w+)}", path))
        if method == "get" and path not in (ENDLESS, *QUERIES) and parameters and parameters <= own.keys() | {"listed"}:
            for name in ("alice", "carol"):
                with subtests.test(f"{path} {name}"):
                    answer = api.get(address(path, own), headers=as_(prepared, name))
                    assert answer.status_code in (200, 404, 409), answer.text[:300]
                    assert "does not exist" not in answer.text


def test_without_a_token_nothing_is_answered(api, own, subtests):
    listed = list(routes(api))
    api.headers.pop("Authorization")
    for method, path in listed:
        with subtests.test(f"{method} {path}"):
            expected = 200 if path == "/healthz" else 401
            assert api.request(method, address(path, own)).status_code == expected


def test_no_page_shows_another_account_what_is_alices(api, prepared, own, subtests):
    words = forbidden_words(prepared, own)
    queries = {
        "/run": f"?id={own['run_id']}", "/dataset": f"?id={own['dataset_id']}", "/sweep": f"?id={own['sweep_id']}",
        "/compare": f"?runs={own['run_id']},{prepared.failed}", "/new": f"?clone={own['run_id']}",
    }  # fmt: skip
    for page in PAGES:
        for query in {"", queries.get(page.path, "")}:
            with subtests.test(page.path + query):
                shown = api.get(page.path + query, headers=as_(prepared, "bob")).text
                asked = {word for word in words if word in query}  # a page may repeat its own address
                assert not [word for word in words - asked if word in shown]
    assert SECRET in api.get("/", headers=as_(prepared, "alice")).text
    assert SECRET in api.get("/", headers=as_(prepared, "carol")).text


def test_nothing_is_made_of_what_another_account_may_not_see(api, prepared, own):
    bob = as_(prepared, "bob")
    config = {"model": "static/starter", "data": own["dataset_id"]}
    for path, body in {
        "/api/runs": config,
        "/api/sweeps": {"config": config, "space": {"lora_r": [4, 8]}},
        "/api/served": {"models": [own["run_id"]]},
        f"/api/runs/{own['run_id']}/evaluations": {"data": prepared.heldout},
    }.items():
        answer = api.post(path, json=body, headers=bob)
        assert answer.status_code in (403, 404, 422), (path, answer.text)
        assert SECRET not in answer.text
    for path in ("/api/checks", "/api/forecasts", "/api/renderings"):
        answer = api.post(path, json=config, headers=bob)
        assert SECRET not in answer.text and "0 + 1" not in answer.text, (path, answer.text)
    asked = api.post("/v1/chat/completions", json={"model": own["run_id"], "messages": []}, headers=bob)
    assert asked.status_code == 404
    assert api.post(f"/api/runs?parent={own['run_id']}", json=config, headers=bob).status_code == 404


def test_the_queue_and_the_machines_show_that_another_user_s_run_is_there(api, prepared, own):
    queue = api.get("/api/queue", headers=as_(prepared, "bob")).json()
    assert {run["owner"] for run in queue["waiting"]} == {"another user"}
    assert len(queue["waiting"]) == len(api.get("/api/queue", headers=as_(prepared, "alice")).json()["waiting"])
    PlayedRun("busy").claim("node1/cuda:0")
    with database.write() as session:
        session.exec(update(Run).values(owner="alice"))
        session.add(DeviceLease(device="node1/cuda:1", served_id=own["served_id"]))
    devices = api.get("/api/system", headers=as_(prepared, "bob")).json()["machines"][0]["devices"]
    shown = [(device["lease"]["name"], device["lease"]["owner"], device["lease"]["phase"]) for device in devices]
    assert shown == [("a run of another user", "another user", "")] * 2
    panel = api.get("/", headers=as_(prepared, "bob")).text
    assert "a run of another user" in panel and 'href="/run?id=hidden' not in panel


def test_what_is_shared_is_seen_but_not_changed(api, prepared, own):
    alice, bob = as_(prepared, "alice"), as_(prepared, "bob")
    run = f"/api/runs/{own['run_id']}"
    assert api.put(f"{run}/shares", json={"users": ["bob"]}, headers=alice).json() == {"users": ["bob"]}
    assert api.get(run, headers=bob).status_code == 200
    assert [one["id"] for one in api.get("/api/runs", headers=bob).json()["runs"]] == [own["run_id"]]
    assert api.get(f"{run}/evaluations", headers=bob).json()["evaluations"]
    assert api.patch(run, json={"name": "mine"}, headers=bob).status_code == 403
    assert api.get(f"{run}/shares", headers=bob).status_code == 403
    assert api.put(f"{run}/shares", json={"users": []}, headers=alice).status_code == 200
    assert api.get(run, headers=bob).status_code == 404


def test_a_shared_data_set_does_not_name_the_runs_that_are_not_shared(api, prepared, own):
    alice, bob = as_(prepared, "alice"), as_(prepared, "bob")
    data = own["dataset_id"]
    api.put(f"/api/datasets/{data}/shares", json={"users": ["bob"]}, headers=alice)
    with database.read_everything() as session:
        names = {run.id: run.name for run in session.exec(select(Run).where(Run.dataset_id == data))}
    assert {use["id"] for use in api.get(f"/api/datasets/{data}", headers=alice).json()["runs"]} >= names.keys()
    for path in (f"/dataset?id={data}", "/datasets", f"/api/datasets/{data}"):
        answer = api.get(path, headers=bob)
        assert answer.status_code == 200, answer.text
        assert not [word for word in (*names, *names.values()) if word in answer.text]
    page = api.get(f"/dataset?id={data}", headers=bob).text
    assert "used by a run of another user" in page and 'href="/run?id=hidden' not in page
    shared = next(iter(names))
    api.put(f"/api/runs/{shared}/shares", json={"users": ["bob"]}, headers=alice)
    assert shared in {use["id"] for use in api.get(f"/api/datasets/{data}", headers=bob).json()["runs"]}


def test_the_archive_of_a_shared_run_opens_no_data_set_that_is_not_shared(api, prepared, own):
    alice, bob, carol = (as_(prepared, name) for name in ("alice", "bob", "carol"))
    api.put(f"/api/runs/{own['run_id']}/shares", json={"users": ["bob"]}, headers=alice)
    taken = restored(api, own, bob)
    with database.read() as session:
        assert session.get(Run, taken.rpartition("/")[2]).dataset_id is None
    for user in (bob, carol):  # an admin does not resume it by mistake for them either
        refused = api.post(f"{taken}/resume", headers=user)
        assert (refused.status_code, refused.json()["error"]["field"]) == (422, "data"), refused.text
    rows = api.post("/api/datasets?name=own.jsonl", content=b'{"prompt": "a", "completion": "b"}\n' * 3, headers=bob)

    def compares():
        asked = {"data": rows.json()["id"], "source": "base"}
        evaluated = api.post(f"{taken}/evaluations", json=asked, headers=bob).json()
        with database.read() as session:
            return evaluations.get(session=session, evaluation_id=evaluated["id"]).request["compares"]

    assert not compares()  # the overlap would tell what is in the data set
    api.put(f"/api/datasets/{own['dataset_id']}/shares", json={"users": ["bob"]}, headers=alice)
    assert compares()
    resumed = api.post(f"{taken}/resume", headers=bob)
    assert resumed.status_code == 200, resumed.text


def restored(api, own, user, **config):
    """The address of a stopped run that a user has restored from the archive of one that they see, with other settings."""
    archive = io.BytesIO(api.get(f"/api/runs/{own['run_id']}/archive.zip", headers=user).content)
    with ZipFile(archive) as packed:
        document = json.loads(packed.read("lathe-run.json"))
        others = [(name, packed.read(name)) for name in packed.namelist() if name != "lathe-run.json"]
    document["run"] |= {"status": "stopped", "name": "taken"}
    document["run"]["config"] |= config
    with ZipFile(archive := io.BytesIO(), "w") as forged:
        for name, content in [("lathe-run.json", json.dumps(document)), *others]:
            forged.writestr(name, content)
    return f"/api/runs/{api.post('/api/archives', content=archive.getvalue(), headers=user).json()['id']}"


def test_the_adapter_of_a_run_that_is_not_shared_comes_in_by_no_archive(api, prepared, own):
    alice, bob, carol = (as_(prepared, name) for name in ("alice", "bob", "carol"))
    secret = restored(api, own, alice).rpartition("/")[2]
    adapter = get_settings().runs_dir / secret / "adapter"
    adapter.mkdir(exist_ok=True)
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    api.put(f"/api/runs/{own['run_id']}/shares", json={"users": ["bob"]}, headers=alice)
    api.put(f"/api/datasets/{own['dataset_id']}/shares", json={"users": ["bob"]}, headers=alice)
    taken, mine = (restored(api, own, user, init_adapter=secret) for user in (bob, alice))
    config = api.get(taken, headers=bob).json()["config"]

    def asked(user, run=taken):
        clone = f"/api/runs?parent={run.rpartition('/')[2]}"
        sweep = {"config": config, "space": {"seed": [1, 2]}}
        yield f"{run}/resume", api.post(f"{run}/resume", headers=user)
        yield clone, api.post(clone, json=config, headers=user)
        yield "/api/sweeps", api.post("/api/sweeps", json=sweep, headers=user)

    for path, refused in asked(bob):
        assert refused.status_code == 422, (path, refused.text)
        assert "init_adapter" in {problem["field"].rpartition(".")[2] for problem in refused.json()["problems"]}, path
        assert "is neither the folder of an adapter nor a run with one" in refused.text
    assert next(asked(carol))[1].status_code == 422  # an admin does not resume it by mistake for bob either
    for path, granted in asked(alice, mine):
        assert granted.status_code in (200, 201), (path, granted.text)
    served = api.post("/v1/chat/completions", json={"model": secret, "messages": []}, headers=bob)
    evaluated = api.post(f"/api/runs/{secret}/evaluations", json={"data": own["dataset_id"]}, headers=bob)
    assert (served.status_code, evaluated.status_code) == (404, 404)


@pytest.mark.parametrize("field", ["teacher", "rewards"])
def test_a_run_that_is_not_shared_is_no_teacher_and_no_reward_model(api, prepared, own, field):
    alice, bob = (as_(prepared, name) for name in ("alice", "bob"))
    secret = restored(api, own, alice).rpartition("/")[2]
    adapter = get_settings().runs_dir / secret / "adapter"
    adapter.mkdir(exist_ok=True)
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    save_file({"base_model.model.score.weight": np.zeros((1, 4), np.float32)}, adapter / "adapter_model.safetensors")
    api.put(f"/api/runs/{own['run_id']}/shares", json={"users": ["bob"]}, headers=alice)
    api.put(f"/api/datasets/{own['dataset_id']}/shares", json={"users": ["bob"]}, headers=alice)
    scores = json.dumps([{"reward": "model", "run": secret}])
    rewarded = {"task": "grpo", "rewards": scores, "num_generations": 4}
    distills = rewarded if field == "rewards" else {"task": "distill", "teacher": secret}
    taken, mine = (restored(api, own, user, **distills) for user in (bob, alice))
    config = api.get(taken, headers=bob).json()["config"]
    for refused in (api.post(f"{taken}/resume", headers=bob), api.post("/api/runs", json=config, headers=bob)):
        assert refused.status_code == 422, refused.text
        assert [problem["field"] for problem in refused.json()["problems"]] == [field], refused.text
        assert "is no run" in refused.text
    granted = api.post(f"{mine}/resume", headers=alice)
    assert granted.status_code == 200, granted.text


def test_the_prompts_for_every_result_are_asked_of_runs_that_their_owner_sees(api, prepared, own):
    alice, bob = as_(prepared, "alice"), as_(prepared, "bob")
    kept = api.post("/api/prompt-sets", json={"name": "mine", "prompts": [{"user": "Say all."}]}, headers=bob).json()
    api.put(f"/api/prompt-sets/{kept['id']}/every-result", json={"every_result": True}, headers=bob)
    ended = [PlayedRun(name).claim(f"host/cpu{name}") for name in ("hidden", "shared")]
    with database.write() as session:
        session.exec(update(Run).values(owner="alice"))
    api.put(f"/api/runs/{ended[1].id}/shares", json={"users": ["bob"]}, headers=alice)
    for run in ended:
        run.end(summary=SUMMARY)
    with database.read_everything() as session:
        asked = session.exec(select(Evaluation.run_id).where(Evaluation.owner == "bob")).all()
    assert asked == [ended[1].id]


def test_a_shared_sweep_shows_its_runs_and_everybody_may_be_meant(api, prepared, own):
    alice, bob = as_(prepared, "alice"), as_(prepared, "bob")
    assert api.put(f"/api/sweeps/{own['sweep_id']}/shares", json={"users": ["*"]}, headers=alice).status_code == 200
    assert api.get(f"/api/sweeps/{own['sweep_id']}", headers=bob).status_code == 200
    assert api.get("/api/runs", headers=bob).json()["total"] == 2


def test_a_name_that_is_no_account_is_refused(api, prepared, own):
    answer = api.put(f"/api/runs/{own['run_id']}/shares", json={"users": ["bbo"]}, headers=as_(prepared, "alice"))
    assert answer.status_code == 422
    assert answer.json()["error"]["message"] == "cannot be shared with 'bbo': there is no such account."


def test_who_uploads_a_file_that_another_account_has_uploaded_sees_it(api, prepared, own):
    path = get_settings().datasets_dir / f"{own['dataset_id']}.jsonl"
    bob = as_(prepared, "bob")
    assert api.get(f"/api/datasets/{own['dataset_id']}", headers=bob).status_code == 404
    added = api.post("/api/datasets?name=mine.jsonl", content=path.read_bytes(), headers=bob)
    assert added.json()["id"] == own["dataset_id"], added.text
    assert api.get(f"/api/datasets/{own['dataset_id']}", headers=bob).status_code == 200


@pytest.mark.parametrize("kind", ["runs", "sweeps", "datasets"])
def test_a_link_shares_with_those_who_open_it_until_it_is_withdrawn(api, prepared, own, kind):
    alice, bob, carol = (as_(prepared, name) for name in ("alice", "bob", "carol"))
    address = f"/api/{kind}/{own[{'runs': 'run_id', 'sweeps': 'sweep_id', 'datasets': 'dataset_id'}[kind]]}"
    assert api.post(f"{address}/shares/link", headers=bob).status_code == 404
    made = api.post(f"{address}/shares/link", headers=alice).json()
    (link,) = made["users"]
    assert link.startswith("link:") and made["path"].rpartition("/")[2] not in link
    answer = api.get(made["path"], headers=alice, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    assert api.get(address, headers=bob).status_code == 404
    opened = api.get(made["path"], headers=bob, follow_redirects=False)
    page = {"runs": "/run", "sweeps": "/sweep", "datasets": "/dataset"}[kind]
    assert opened.headers["location"].startswith(f"{page}?id=")
    assert api.get(address, headers=bob).status_code == 200
    assert api.get(f"{address}/shares", headers=alice).json()["users"] == ["bob", link]
    assert api.put(f"{address}/shares", json={"users": ["bob"]}, headers=alice).json() == {"users": ["bob"]}
    withdrawn = api.get(made["path"], headers=carol)
    assert (withdrawn.status_code, withdrawn.json()["error"]["field"]) == (404, "link")
    assert api.put(f"{address}/shares", json={"users": [link]}, headers=alice).status_code == 422
    api.put(f"{address}/shares", json={"users": []}, headers=alice)


def test_neither_of_two_who_uploaded_a_file_takes_it_from_the_other(api, prepared, own, home):
    alice, bob = as_(prepared, "alice"), as_(prepared, "bob")
    rows = b'{"prompt": "one", "completion": "two"}\n' * 20
    address = f"/api/datasets/{api.post('/api/datasets?name=a.jsonl', content=rows, headers=alice).json()['id']}"
    api.post("/api/datasets?name=b.jsonl", content=rows, headers=bob)

    def seen():
        return [api.get(address, headers=user).status_code for user in (alice, bob)]

    api.put(f"{address}/shares", json={"users": []}, headers=alice)
    assert seen() == [200, 200]
    assert api.delete(address, headers=bob).status_code == 204  # for bob alone
    assert seen() == [200, 404]
    api.post("/api/datasets?name=b.jsonl", content=rows, headers=bob)
    assert api.delete(address, headers=alice).status_code == 204
    assert seen() == [404, 200]
    assert api.get(address, headers=bob).json()["owner"] == "bob"
    assert api.delete(address, headers=bob).status_code == 204
    assert seen() == [404, 404]


def test_a_change_of_a_run_names_with_whom_it_is_shared(api, prepared, own):
    alice, path = as_(prepared, "alice"), f"/api/runs/{own['run_id']}"
    before = api.get(path, headers=alice).json()["name"]
    refused = api.patch(path, json={"name": "new name", "users": ["bob", "bbo"]}, headers=alice)
    assert refused.status_code == 422 and "'bbo': there is no such account" in refused.text
    assert api.get(path, headers=alice).json()["name"] == before  # all or nothing
    assert api.get(f"{path}/shares", headers=alice).json()["users"] == []
    assert api.patch(path, json={"users": ["bob", "carol"]}, headers=alice).status_code == 200
    assert api.get(f"{path}/shares", headers=alice).json()["users"] == ["bob", "carol"]
    assert api.get(path, headers=as_(prepared, "bob")).status_code == 200


def test_a_deleted_run_is_no_longer_shared(api, prepared, own):
    alice = as_(prepared, "alice")
    api.put(f"/api/runs/{own['run_id']}/shares", json={"users": ["*"]}, headers=alice)
    assert api.delete(f"/api/runs/{own['run_id']}", headers=alice).status_code == 204
    with database.read() as session:
        assert shares.users(session=session, kind="run", object_id=own["run_id"]) == []


def events(prepared, ids):
    """What pages send with a click: each names something of alice's."""
    run, data = ids["run_id"], ids["dataset_id"]
    yield from (
        {"search": "ebra"}, {"remove": data}, {"dismiss": 1}, {"use": "node1"},
        {"free": ["finished_checkpoints"]}, {"add": run}, {"add": prepared.failed}, {"address": f"id={data}"}, {"save": True},
        {"forget": True}, {"again": True}, {"stop": True}, {"random": True}, {"row": 2}, {"rotate_user": "alice"},
        {"remove_user": "alice"}, {"remove_channel": "1"}, {"test": "1"}, {"delete": "1"}, {"share": True}, {"card": data},
        {"changes": {"data": data, "model": run}}, {"changes": {"validation_data": data}}, {"id": ids["evaluation_id"]},
    )  # fmt: skip


def takes_event(web, number):
    """True if a page's handler reads what the page sends with a click."""
    gradio = next(route.app for route in web.app.routes if hasattr(getattr(route, "app", None), "blocks"))
    handler = gradio.blocks.fns[number].fn
    return any(one.annotation is gr.EventData for one in inspect.signature(handler).parameters.values())


@pytest.mark.parametrize(
    ("visibility", "thorough"),
    [
        ("own", False),
        pytest.param("own", True, marks=pytest.mark.nightly),
        pytest.param("all", True, marks=pytest.mark.nightly),
    ],
)
def test_no_handler_shows_or_changes_what_is_alices(own, prepared, monkeypatch, subtests, visibility, thorough):
    monkeypatch.setenv("LATHE_VISIBILITY", visibility)
    get_settings.cache_clear()
    web = client(visibility=visibility)
    words = forbidden_words(prepared, own) if visibility == "own" else set()
    bob, before, sent = as_(prepared, "bob"), everything_stored(), ""
    handlers = [item for item in web.get("/config", headers=bob).json()["dependencies"] if item["backend_fn"]]
    kinds = {component["id"]: component["type"] for component in web.get("/config").json()["components"]}
    ids = [
        own["run_id"],
        own["dataset_id"],
        own["sweep_id"],
        own["evaluation_id"],
        f"{own['run_id']},{prepared.failed}",
    ]
    queries = [f"?id={one}&runs={one}&clone={one}&data={one}" for one in ids]

    def call(item, data, event, query):
        nonlocal sent
        sent += json.dumps([data, event, query])
        body = {"fn_index": item["id"], "data": data, "event_data": event, "session_hash": "bob"}
        answer = web.post(f"/gradio_api/run/predict{query}", json=body, headers=bob)
        assert answer.status_code < 500, (item["api_name"], data, event, query)
        shown = [word for word in words if word in answer.text and word not in sent]
        assert not shown, (item["api_name"], event, [part[-200:] for part in answer.text.split(shown[0])])

    for item in handlers:
        texts = [kinds[number] in ("textbox", "dropdown", "html", "state", "radio") for number in item["inputs"]]
        with subtests.test(f"{item['id']} {item['api_name']}"):
            for one, query in list(zip(ids, queries, strict=True))[: None if thorough else 3]:
                call(item, [None] * len(texts), {"id": one}, query)
                if thorough:  # starts programs
                    call(item, [one if is_text else None for is_text in texts], None, query)
            if thorough and takes_event(web, item["id"]):
                for event in events(prepared, own):
                    for query in queries[:2]:
                        call(item, [None] * len(texts), event, query)
    for item in handlers:  # what a dialog asked before
        call(item, [None] * len(item["inputs"]), None, queries[0])
    after = everything_stored()
    assert before.keys() <= after.keys()
    assert {after[row] for row in after.keys() - before.keys()} <= {"bob"}


def test_the_session_of_another_user_s_page_is_refused(api, prepared):
    item = next(one for one in api.get("/config").json()["dependencies"] if one["backend_fn"] and not one["inputs"])
    body = {"fn_index": item["id"], "data": [], "session_hash": "of-alice"}
    assert api.post("/gradio_api/run/predict", json=body, headers=as_(prepared, "alice")).status_code == 200
    for path, sent in {
        "/gradio_api/run/predict": body,
        "/gradio_api/cancel": {"session_hash": "of-alice", "fn_index": 0, "event_id": "x"},
    }.items():
        refused = api.post(path, json=sent, headers=as_(prepared, "bob"))
        assert (refused.status_code, refused.json()["error"]["field"]) == (403, "session_hash")
    stream = api.get("/gradio_api/queue/data?session_hash=of-alice", headers=as_(prepared, "bob"))
    assert stream.status_code == 403
    assert api.post("/gradio_api/run/predict", json=body | {"session_hash": "x" * 65}).status_code == 422


def test_the_stream_of_a_session_without_calls_ends_without_an_error(api, prepared):
    """As of a page that was open while the server started again."""
    answer = api.get("/gradio_api/queue/data?session_hash=unknown", headers=as_(prepared, "bob"))
    assert answer.status_code == 200
    assert json.loads(answer.text.removeprefix("data: "))["session_not_found"] is True
