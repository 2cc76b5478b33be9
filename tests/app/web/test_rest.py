"""REST routes of data sets, logs, events, archives and users."""

import json

import pytest
from played_run import PlayedRun
from web import client

from training.run_folder.events import Note
from worker.store import accounts, database, history

ROWS = "".join(json.dumps({"prompt": f"{n}", "completion": f"{n + 1}"}) + "\n" for n in range(20))
COLUMNS = "".join(json.dumps({"q": f"{n}", "a": f"{n + 1}"}) + "\n" for n in range(20))
MAPPED = "prompt=q, completion=a"


@pytest.fixture
def api(home):
    return client()


@pytest.fixture
def account(api):
    """The headers of a user who is no admin."""
    with database.write() as session:
        token = accounts.add(session=session, name="alice")
    return {"Authorization": f"Bearer {token}"}


def told(response, status):
    assert response.status_code == status, response.text
    return response.json()["error"]


def sent(api, text=ROWS, **options):
    answer = api.post("/api/datasets", params={"name": "rows.jsonl"}, content=text, **options)
    assert answer.status_code == 201, answer.text
    return answer.json()


def test_a_file_is_imported_from_the_body(api):
    added = sent(api)
    assert (added["name"], added["rows"], added["format"]) == ("rows.jsonl", 20, "prompt/completion")
    listed = api.get("/api/datasets").json()
    assert ([one["id"] for one in listed["datasets"]], listed["total"]) == ([added["id"]], 1)


def test_files_of_a_form_become_one_data_set(api):
    files = [("file", ("a.jsonl", ROWS)), ("file", ("b.jsonl", ROWS.replace('"1"', '"one"')))]
    added = api.post("/api/datasets", files=files).json()
    assert (added["name"], added["rows"]) == ("a.jsonl + b.jsonl", 40)


def test_the_list_of_data_sets_has_pages(api):
    ids = {sent(api, ROWS * times)["id"] for times in (1, 2, 3)}
    pages = [api.get("/api/datasets", params={"limit": 2, "offset": offset}).json() for offset in (0, 2)]
    assert [len(page["datasets"]) for page in pages] == [2, 1]
    assert {one["id"] for page in pages for one in page["datasets"]} == ids
    assert {page["total"] for page in pages} == {3}


def test_a_body_without_a_name_and_a_form_without_a_file_are_refused(api):
    assert told(api.post("/api/datasets", content=ROWS), 422)["field"] == "name"
    assert told(api.post("/api/datasets", files={"other": ("a.jsonl", ROWS)}), 422)["field"] == "file"


def test_every_problem_of_a_refused_file_is_listed_and_nothing_stored(api, home):
    answer = api.post("/api/datasets", params={"name": "rows.jsonl"}, content=ROWS + "{broken\n")
    assert told(answer, 422)["field"].startswith("rows.jsonl, row 21")
    assert api.get("/api/datasets").json()["total"] == 0
    assert not list((home / "datasets").iterdir())


def test_a_received_file_is_not_left_behind(api):
    sent(api)
    assert not list(api.app.state.uploads.glob("rest-*"))


def test_a_file_that_is_too_large_is_refused(home):
    small = client(upload_limit_bytes=1000)
    answer = small.post("/api/datasets", params={"name": "a.jsonl"}, content=b"x" * (2 * 2**20))
    assert told(answer, 413)["field"] == "file"


def test_a_checked_file_is_not_stored(api):
    found = api.post("/api/datasets/check", params={"name": "rows.jsonl"}, content=ROWS).json()
    assert (found["rows"], found["trainable"], found["problems"]) == (20, True, [])
    assert api.get("/api/datasets").json()["total"] == 0


def test_several_files_are_checked_as_the_data_set_that_they_become(api):
    def check(*contents):
        files = [("file", (f"rows-{number}.jsonl", content)) for number, content in enumerate(contents)]
        return api.post("/api/datasets/check", files=files).json()

    whole = check(ROWS, ROWS)
    assert (whole["rows"], whole["trainable"], whole["problems"]) == (40, True, [])
    broken = check(ROWS, b'{"prompt": \n')
    assert not broken["trainable"] and broken["problems"][0]["file"] == "rows-1.jsonl"
    assert api.get("/api/datasets").json()["total"] == 0


def test_a_mapping_is_saved_and_removed(api):
    added = sent(api, COLUMNS)
    assert added["format"] == "unknown"
    mapped = api.patch(f"/api/datasets/{added['id'][:6]}", json={"columns": MAPPED}).json()
    assert (mapped["format"], mapped["columns_map"]) == ("mapped", MAPPED)
    assert api.patch(f"/api/datasets/{added['id']}", json={"columns": None}).json()["columns_map"] is None


def test_only_the_owner_maps_and_deletes_a_data_set(api, account):
    place = f"/api/datasets/{sent(api)['id']}"
    assert told(api.delete(place, headers=account), 403)["field"] == "dataset"
    assert told(api.patch(place, json={"columns": MAPPED}, headers=account), 403)["field"] == "dataset"
    assert api.delete(place).status_code == 204
    assert told(api.get(place), 404)["field"] == "dataset"


def test_a_log_is_read_in_pages_or_from_its_end(api):
    run = PlayedRun("sums").claim()
    with database.write() as session:
        history.append_log(
            session=session, run_id=run.id, attempt=1, lines=[f"line {n}" for n in range(5)], new_offset=50
        )
    first = api.get(f"/api/runs/{run.id}/log", params={"limit": 3}).json()
    second = api.get(f"/api/runs/{run.id}/log", params={"after": first["next"]}).json()
    end = api.get(f"/api/runs/{run.id}/log", params={"limit": 2, "last": True}).json()
    texts = [[line["text"] for line in page["lines"]] for page in (first, second, end)]
    assert texts == [["line 0", "line 1", "line 2"], ["line 3", "line 4"], ["line 3", "line 4"]]
    assert (second["next"], second["ended"]) == (end["next"], False)


def test_events_are_read_in_pages(api):
    run = PlayedRun("sums").claim()
    run.report(*(Note(message=f"note {n}") for n in range(4)))
    run.end()
    read, after = [], 0
    while page := (answer := api.get(f"/api/runs/{run.id}/events", params={"after": after, "limit": 2}).json())[
        "events"
    ]:
        read, after = read + page, answer["next"]
    assert answer["ended"]
    assert [event["message"] for event in read if event["message"].startswith("note")] == [
        f"note {n}" for n in range(4)
    ]


def test_a_run_is_imported_from_its_archive_and_belongs_to_the_caller(api, account):
    run = PlayedRun("sums").claim().end()
    archive = api.get(f"/api/runs/{run.id}/archive.zip").content
    imported = api.post("/api/archives", content=archive, headers=account)
    assert (imported.status_code, imported.json()["owner"]) == (201, "alice")
    assert imported.json()["id"] != run.id
    assert told(api.post("/api/archives", content=b"no archive"), 422)["value"] is None


def test_tags_are_added_and_removed(api):
    run = PlayedRun("sums")
    api.patch(f"/api/runs/{run.id}", json={"tags": ["a", "b"]})
    changed = api.patch(f"/api/runs/{run.id}", json={"add_tags": ["c"], "remove_tags": ["a"]}).json()
    assert changed["tags"] == ["b", "c"]


def test_a_list_of_runs_names_its_groups_and_what_cannot_be_one(api):
    first, other, last = PlayedRun("first", lora_r=8), PlayedRun("other", lora_r=64), PlayedRun("last", lora_r=8)
    listed = api.get("/api/runs", params={"group": "lora_r"}).json()
    assert [run["id"] for run in listed["runs"]] == [last.id, first.id, other.id]
    assert listed["groups"] == [
        {"value": "8", "runs": [last.id, first.id], "total": 2, "best_loss": None, "rewarded": False},
        {"value": "64", "runs": [other.id], "total": 1, "best_loss": None, "rewarded": False},
    ]
    assert told(api.get("/api/runs", params={"group": "rank"}), 422)["field"] == "group"


def test_groups_of_data_sets_of_the_same_name_have_their_ids(api):
    one, other = (sent(api, ROWS * times)["id"] for times in (1, 2))
    alone = api.post("/api/datasets", params={"name": "alone.jsonl"}, content=ROWS * 3).json()["id"]
    mixed = json.dumps([{"path": one, "weight": 3}, {"path": other}])
    for data in (one, one, other, alone, mixed):
        PlayedRun(data=data)
    groups = api.get("/api/runs", params={"group": "data"}).json()["groups"]
    assert {group["value"]: group["total"] for group in groups} == {
        f"rows.jsonl · {one}": 2,
        f"rows.jsonl · {other}": 1,
        "alone.jsonl": 1,
        "rows.jsonl (weight 3) + rows.jsonl (weight 1)": 1,
    }


def test_an_admin_manages_accounts_and_a_token_is_shown_once(api):
    token = api.post("/api/users", json={"name": "bob"}).json()["token"]
    bob = {"Authorization": f"Bearer {token}"}
    assert api.get("/api/runs", headers=bob).status_code == 200
    listed = api.get("/api/users").json()
    (one,) = listed["users"]
    assert (listed["total"], one["name"], one["admin"], "token_hash" in one) == (1, "bob", False, False)
    fresh = api.post("/api/users/bob/token").json()["token"]
    assert fresh != token
    assert api.delete("/api/users/bob").status_code == 204
    assert told(api.delete("/api/users/bob"), 404)["value"] == "bob"


def test_users_who_are_no_admins_do_not_manage_accounts(api, account):
    for method, path in (("GET", ""), ("POST", ""), ("POST", "/alice/token"), ("DELETE", "/alice")):
        body = {"name": "eve"} if (method, path) == ("POST", "") else None
        assert told(api.request(method, f"/api/users{path}", json=body, headers=account), 403)["fix"] == "Ask an admin."


def messages(text):
    """The messages of a stream as (id, name, data)."""
    parts = [dict(line.split(": ", 1) for line in part.splitlines()) for part in text.strip().split("\n\n")]
    return [(part["id"], part["event"], json.loads(part["data"])) for part in parts]


def test_a_stream_sends_log_and_events_and_ends_with_the_run(api):
    run = PlayedRun("sums").claim()
    run.prints("one", "two")
    run.end()
    answer = api.get(f"/api/runs/{run.id}/stream")
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = messages(answer.text)
    assert [data["text"] for _, name, data in found if name == "log"] == ["one", "two"]
    assert found[-1][1:] == ("end", {"status": "finished"})
    rest = messages(api.get(f"/api/runs/{run.id}/stream", headers={"Last-Event-ID": found[-3][0]}).text)
    assert rest == found[-2:]
    assert told(api.get("/api/runs/zzzzzzzz/stream"), 404)["field"] == "run"


def test_a_parameter_that_a_route_does_not_know_is_refused():
    api = client()
    listed = api.get("/api/runs?stauts=running")
    assert listed.status_code == 422
    assert listed.json()["error"] == {
        "field": "stauts",
        "value": "running",
        "message": "is not a parameter of this request.",
        "fix": "Did you mean status?",
        "changes": {},
    }
    assert api.post("/api/runs/abcd/builds/gguf?type=q4_k_m").json()["error"]["fix"] == "Leave it out."
