"""With LATHE_VISIBILITY=own, work in progress of another account is neither seen nor changed: a run that trains, builds,
evaluations, served models; also not by who saw it before a share was withdrawn."""

import re

import pytest
from owned import (
    BODIES,
    ENDLESS,
    OWNED,
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
from played_run import PlayedRun
from prepared import prepared_installation  # noqa: F401
from sqlmodel import col, update

from app.web import live as streams
from app.web.rest import openai
from training.run_folder.events import Metrics, PhaseStarted
from worker.evaluations import submit
from worker.settings import get_settings
from worker.store import builds, database, evaluations, sight
from worker.store.tables import Build, ServedModel, ServedState
from worker.store.work import BUILD

pytestmark = pytest.mark.slow

HELD = {"holder": "host:1:1", "lease_seconds": 60}
FORM = "merged"


@pytest.fixture
def working(prepared, own):
    """The ids of a run that trains, and those of a finished run with a build, an evaluation and a served model in progress."""
    training = PlayedRun(f"trains {SECRET}", data=prepared.dataset).claim()
    training.report(PhaseStarted(phase="training"), Metrics(step=1, values={"loss": 2.5})).prints(f"a line of {SECRET}")
    asked = submit.submit(own["run_id"], {"metrics": ["exact_match"], "source": "checkpoint-1"}, data=prepared.heldout)
    with database.write() as session:
        claim = {"owner": "host:1:1", "device": "host/gpu", "lease_seconds": 60}
        assert evaluations.claim(session=session, evaluation_id=asked.id, **claim)
        for form in (FORM, "gguf"):
            item = builds.create(session=session, run_id=own["run_id"], form=form, owner="alice")
        assert BUILD.take(session, col(Build.id) == item.id, **HELD)
        session.exec(update(ServedModel).values(state=ServedState.READY, address="127.0.0.1:9", **_lease(session)))
        for table in OWNED:
            session.exec(update(table).values(owner="alice"))
    with_work = own | {"evaluation_id": asked.id, "result_form": FORM}
    return [own | {"run_id": training.id, "object_id": training.id}, with_work, with_work | {"result_form": "gguf"}]


def _lease(session):
    return {"holder": "host:1:1", "expires_at": database.now(session=session) + get_settings().lease_seconds}


def requests(api, ids):
    """Each operation that names something of alice's."""
    for method, path in routes(api):
        if set(re.findall(r"{(\w+)}", path)) & ids.keys() and path != ENDLESS:
            yield method, path, address(path, ids) + QUERIES.get(path, ""), BODIES.get(path, {})


def refused(api, prepared, working):
    """Asks for everything as bob: what was answered or changed all the same, and the number of requests."""
    before, wrong, cells = everything_stored(), {}, 0
    for ids in working:
        words = forbidden_words(prepared, ids)
        for method, path, asked, body in requests(api, ids):
            cells += 1
            answer = api.request(method, asked, json=None if method == "get" else body, headers=as_(prepared, "bob"))
            leaked = [word for word in words if word in answer.text and word not in asked]
            if answer.status_code not in (403, 404) or leaked:
                wrong[method, path] = answer.status_code, leaked
    assert {name for name, _ in before.keys() ^ everything_stored().keys()} <= {"token_use"}
    return wrong, cells


def test_another_account_neither_sees_nor_changes_work_in_progress(api, prepared, working):
    wrong, cells = refused(api, prepared, working)
    assert cells > 150
    assert wrong == {}
    for page in (
        "/",
        "/system",
        "/playground",
        f"/run?id={working[0]['run_id']}",
        f"/compare?runs={working[0]['run_id']}",
    ):
        shown = api.get(page, headers=as_(prepared, "bob")).text
        assert not [word for word in forbidden_words(prepared, working[0]) if word in shown and word not in page], page


def share(api, prepared, ids, users):
    for kind, key in (("runs", "run_id"), ("sweeps", "sweep_id"), ("datasets", "dataset_id")):
        answer = api.put(f"/api/{kind}/{ids[key]}/shares", json={"users": users}, headers=as_(prepared, "alice"))
        assert answer.status_code == 200


def test_who_a_run_was_shared_with_changes_none_of_its_work_and_sees_nothing_after_it_is_withdrawn(
    api, prepared, working
):
    for ids in working:
        share(api, prepared, ids, ["bob"])
    before, wrong, seen = everything_stored(), {}, 0
    for ids in working:
        for method, path, asked, body in requests(api, ids):
            answer = api.request(method, asked, json=None if method == "get" else body, headers=as_(prepared, "bob"))
            seen += answer.status_code == 200
            if method != "get" and answer.status_code not in (403, 404) and not path.endswith("/rows/stop"):
                wrong[method, path] = answer.status_code
    assert wrong == {}
    assert seen > 30
    assert {name for name, _ in before.keys() ^ everything_stored().keys()} <= {"token_use"}
    for ids in working:
        share(api, prepared, ids, [])
    assert refused(api, prepared, working)[0] == {}


def test_a_model_that_was_served_to_a_user_answers_no_more_once_its_run_is_withdrawn(api, prepared, own, monkeypatch):
    monkeypatch.setattr(openai, "WAIT_SECONDS", 0.0)
    bob, name = as_(prepared, "bob"), f"{own['run_id']}:base"
    with database.write() as session:
        session.exec(update(ServedModel).values(owner="bob", state=ServedState.READY, address="127.0.0.1:9"))
        session.exec(update(ServedModel).values(models=[name], **_lease(session)))
        served = session.get(ServedModel, own["served_id"]).id
    asked = {"model": name, "messages": [{"role": "user", "content": "hi"}]}
    share(api, prepared, own, ["bob"])
    answer = api.post("/v1/chat/completions", json=asked, headers=bob)  # nothing listens there
    assert (answer.status_code, "waiting" in answer.text) == (503, False), answer.text
    share(api, prepared, own, [])
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/tokenize"):
        answer = api.post(path, json=asked, headers=bob)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found"), answer.text
    assert api.get(f"/api/served/{served}", headers=bob).status_code == 200  # it is bob's to end


def test_a_log_that_is_being_downloaded_ends_where_a_share_is_withdrawn(api, prepared, own, monkeypatch):
    monkeypatch.setattr(streams, "_PAGE", 1)
    share(api, prepared, own, ["bob"])
    with sight.everything():
        sight.limit_to("bob")
        lines = streams._whole_log(own["run_id"])
        assert next(lines) == "line 0\n"
        with sight.everything():
            share(api, prepared, own, [])
        assert list(lines) == []
