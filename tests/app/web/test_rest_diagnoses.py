"""REST routes of shared diagnoses, of filtered logs, and of trainable parameters."""

import re
import time

import pytest
import warm
from paths import ROOT
from played_run import PlayedRun
from web import account, client

from worker.store import log_search
from worker.store.tables import Status

LOG = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB.\nHF_TOKEN=hf_Abcdefghijklmnopqrstuvwxyz0123456789"


@pytest.fixture
def api(home):
    return client()


def told(response, status):
    assert response.status_code == status, response.text
    return response.json()["error"]


def test_a_diagnosis_is_shared_listed_and_deleted_by_its_owner(api):
    alice, bob = account("alice"), account("bob")
    answer = api.post("/api/diagnoses", params={"share": True}, content=LOG, headers=alice).json()
    place = f"/api/diagnoses/{answer['shared']['id']}"
    shared = api.get(place, headers=bob).json()
    assert (shared["owner"], shared["diagnosis"]["cause"], shared["address"]) == (
        "alice",
        "cuda_out_of_memory",
        answer["shared"]["address"],
    )
    assert "Tried to allocate" in shared["log"] and "hf_abc" not in shared["log"]
    assert [one["address"] for one in api.get("/api/diagnoses").json()["diagnoses"]] == [shared["address"]]
    assert told(api.delete(place, headers=bob), 403)["field"] == "diagnosis"
    assert api.delete(place, headers=alice).status_code == 204
    assert told(api.get(place), 404)["field"] == "diagnosis"
    assert api.get("/api/diagnoses").json() == {"diagnoses": []}


def test_a_diagnosis_is_stored_only_if_it_is_shared(api):
    assert "shared" not in api.post("/api/diagnoses", content=LOG).json()
    assert api.get("/api/diagnoses").json() == {"diagnoses": []}


def test_failed_runs_are_among_the_recent_diagnoses(api):
    error = {"message": "x", "diagnosis": {"title": "Out of GPU memory", "cause": "cuda_out_of_memory"}}
    run = PlayedRun("sums").claim().end(Status.FAILED, reason="x", error=error)
    (found,) = api.get("/api/diagnoses").json()["diagnoses"]
    assert (found["address"], found["name"], found["cause"]) == (f"/run?id={run.id}", "sums", "cuda_out_of_memory")


PRINTED = [
    "[rank0]: epoch 1",
    "[rank1]: UserWarning: slow",
    "[rank1]: Traceback (most recent call last):",
    '[rank1]:   File "train.py", line 1',
    "",
    "[rank1]: KeyError: 3",
    "done",
]


@pytest.fixture
def printed(api):
    return PlayedRun("sums").claim().prints(*PRINTED).end()


def texts(api, run, **params):
    page = api.get(f"/api/runs/{run.id}/log", params=params).json()
    return [line["text"] for line in page["lines"]]


@pytest.mark.parametrize(
    ("wanted", "lines"),
    [
        ({"level": "error"}, PRINTED[2:6]),
        ({"level": "warning"}, PRINTED[1:6]),
        ({"rank": 0}, PRINTED[:1]),
        ({"rank": 1, "level": "error"}, [PRINTED[2], PRINTED[3], PRINTED[5]]),
        ({"search": "KEYERROR"}, PRINTED[5:6]),
        ({"search": "no such text"}, []),
        ({"level": "error", "limit": 1, "last": True}, PRINTED[5:6]),
    ],
)
def test_a_log_is_filtered_by_level_rank_and_text(api, printed, wanted, lines):
    assert texts(api, printed, **wanted) == lines


@pytest.mark.parametrize("part", [1, 2, 5000])
@pytest.mark.parametrize("wanted", [{"level": "error"}, {"rank": 1}, {"search": "r"}])
def test_a_filtered_log_is_read_on_without_a_gap_also_inside_a_traceback(api, printed, monkeypatch, part, wanted):
    monkeypatch.setattr(log_search, "_PART", part)
    monkeypatch.setattr(log_search, "SEARCHED", 2 * part)  # two parts for each answer
    read, after, more = [], 0, True
    while more:
        page = api.get(f"/api/runs/{printed.id}/log", params=wanted | {"after": after, "limit": 2}).json()
        read, after, more = read + page["lines"], page["next"], page["more"]
    monkeypatch.undo()
    assert [line["text"] for line in read] == texts(api, printed, **wanted)


def test_filtered_lines_have_their_level_and_rank(api, printed):
    (line,) = api.get(f"/api/runs/{printed.id}/log", params={"search": "slow"}).json()["lines"]
    assert (line["level"], line["rank"], line["attempt"]) == ("warning", 1, 1)
    assert told(api.get(f"/api/runs/{printed.id}/log", params={"level": "loud"}), 422)["field"] == "level"
    assert told(api.get("/api/runs/zzzzzzzz/log", params={"rank": 1}), 404)["field"] == "run"


def test_the_page_and_the_server_tell_levels_and_ranks_by_the_same_patterns():
    script = (ROOT / "static" / "log.js").read_text()
    for name in ("RANK", "ERROR", "WARNING"):
        pattern = re.search(rf"const {name} = /(.*)/i?;", script)
        assert pattern and pattern[1] == getattr(log_search, name)


@pytest.mark.slow
def test_the_trainable_parameters_of_a_configuration_are_listed(api, monkeypatch):
    warm.use_python(monkeypatch)
    model = ROOT / "static" / "starter"
    answer = api.post("/api/targets", json={"model": str(model), "target_modules": "q_proj", "lora_r": 2})
    assert answer.status_code == 200, answer.text
    targets = answer.json()
    assert 0 < targets["trainable"] < targets["total"]
    assert [group["pattern"].rpartition(".")[2] for group in targets["matched"]] == ["q_proj"]
    assert told(api.post("/api/targets", json={"model": str(model), "lora_r": 0}), 422)["field"] == "lora_r"
    assert told(api.post("/api/targets", json=[]), 422)["field"] == "body"


def test_a_log_of_hostile_lines_is_read_outside_of_the_server(api):
    log = "\n".join(f"{line}{'9' * 4000}" for line in range(200))
    before = time.process_time()
    assert api.post("/api/diagnoses", content=log.encode()).status_code == 200
    assert time.process_time() - before < 0.5
