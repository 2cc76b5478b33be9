"""REST routes that import data sets from the hub and from folders of the server."""

import json
import time

import pytest
from stand_in_hub import serve
from web import account, client

from worker.datasets import datasets
from worker.settings import get_settings
from worker.store import database

ROWS = "".join(json.dumps({"prompt": f"{n}", "completion": f"{n + 1}"}) + "\n" for n in range(20))


@pytest.fixture
def api(home, tmp_path, monkeypatch):
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "rows.jsonl").write_text(ROWS)
    (folder / "broken.jsonl").write_text("{broken\n")
    monkeypatch.setenv("LATHE_DATA_FOLDERS", str(folder))
    get_settings.cache_clear()
    return client()


def told(response, status):
    assert response.status_code == status, response.text
    return response.json()["error"]


def started(api, body, **options):
    answer = api.post("/api/datasets/imports", json=body, **options)
    assert answer.status_code == 202, answer.text
    return answer.json()


def ended(api, body, **options):
    """The import at its end."""
    place = f"/api/datasets/imports/{started(api, body, **options)['id']}"
    while (found := api.get(place).json())["state"] == "checking":
        time.sleep(0.02)
    return found


def test_a_file_of_the_server_is_listed_and_imported(api):
    assert api.get("/api/datasets/files").json() == {
        "files": ["shared/broken.jsonl", "shared/rows.jsonl"],
        "reason": "",
    }
    found = ended(api, {"file": "shared/rows.jsonl"})
    assert (found["state"], found["name"], found["problems"]) == ("done", "shared/rows.jsonl", [])
    assert api.get(f"/api/datasets/{found['datasets'][0]['id']}").json()["rows"] == 20


def test_the_problems_of_a_refused_file_stay_until_they_are_dismissed(api):
    found = ended(api, {"file": "shared/broken.jsonl"})
    assert (found["state"], found["datasets"], found["problems"][0]["line"]) == ("refused", [], 1)
    place = f"/api/datasets/imports/{found['id']}"
    bob = account("bob")
    assert told(api.delete(place, headers=bob), 403)["field"] == "file"
    assert api.delete(place).status_code == 204
    assert told(api.get(place), 404)["field"] == "import"


def test_a_data_set_of_the_hub_is_imported_for_the_caller(api, monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    alice = account("alice")
    with serve({"data/train.jsonl": ROWS.encode()}) as (address, _):
        monkeypatch.setenv("HF_ENDPOINT", address)
        found = ended(api, {"hub": {"name": "owner/set"}}, headers=alice)
        missing = ended(api, {"hub": {"name": "owner/other"}})
    assert (found["state"], found["owner"]) == ("done", "alice"), found
    item = api.get(f"/api/datasets/{found['datasets'][0]['id']}").json()
    assert (item["name"], item["owner"], item["rows"]) == ("owner-set-train.jsonl", "alice", 20)
    assert (missing["state"], missing["problems"][0]["fix"]) == ("refused", "Check its owner and name.")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "body"),
        ({"file": "shared/rows.jsonl", "hub": {"name": "owner/set"}}, "body"),
        ({"hub": {"name": ""}}, "body.hub.name"),
        ({"files": ["a"]}, "body.files"),
    ],
)
def test_an_import_without_one_source_is_refused(api, body, field):
    assert told(api.post("/api/datasets/imports", json=body), 422)["field"] in (field, field.removeprefix("body."))


@pytest.mark.parametrize("name", ["shared/../secret.jsonl", "/etc/passwd", "shared/none.jsonl", "shared/a\x00b"])
def test_a_file_outside_the_folders_is_refused(api, name):
    assert told(api.post("/api/datasets/imports", json={"file": name}), 422)["fix"]


def test_an_offline_server_says_so(api, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    problem = told(api.post("/api/datasets/imports", json={"hub": {"name": "owner/set"}}), 422)
    assert "HF_HUB_OFFLINE" in problem["message"] and "Upload" in problem["fix"]


def test_a_data_set_whose_file_is_gone_says_so_wherever_it_is_read(api):
    item = ended(api, {"file": "shared/rows.jsonl"})["datasets"][0]["id"]
    with database.read() as session:
        datasets.path_of(datasets.get(session=session, dataset_id=item)).unlink()
    words = "cannot be read: No such file or directory."
    for rows in (f"/api/datasets/{item}/rows", f"/api/datasets/{item}/rows?search=7"):
        assert words in told(api.get(rows), 422)["message"]
    for tab in ("rows", "rows&search=8", "columns", "tokens", "lengths", "batches"):
        page = api.get(f"/dataset?id={item}&tab={tab}&model=static/starter", headers={"accept": "text/html"})
        assert page.status_code == 200, tab
        assert tab in ("columns", "rows&search=8") or words in page.text, tab
