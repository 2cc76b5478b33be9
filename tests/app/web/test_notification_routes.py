"""REST routes of settings and notifications: who may add what, what is shown, and the outcome of a test."""

import pytest
from environment import use
from receivers import hooks
from web import client

from app.access import server_token
from worker.settings import get_settings
from worker.store import accounts, database
from worker.store.tables import Status

PATH = "/api/notifications"


@pytest.fixture
def api(home):
    return client()


@pytest.fixture
def receiver():
    with hooks() as running:
        yield running


def account(name, *, admin=False):
    """The headers of a user with this account."""
    with database.write() as session:
        token = accounts.add(session=session, name=name, admin=admin)
    return {"Authorization": f"Bearer {token}"}


def told(response, status):
    assert response.status_code == status, response.text
    return response.json()["error"]


def test_a_channel_is_added_listed_changed_and_removed(api, receiver):
    added = api.post(PATH, json={"address": receiver.url}).json()
    assert added["events"] == ["finished", "failed", "diverged"]
    assert added["address"] == f"http://127.0.0.1:{receiver.port}/…part" and added["format"] == "json"
    listed = api.get(PATH).json()
    assert [one["id"] for one in listed["channels"]] == [added["id"]] and "verysecretpart" not in str(listed)
    changed = api.put(f"{PATH}/{added['id']}", json={"events": ["stopped"]}).json()
    assert changed["events"] == ["stopped"]
    assert told(api.put(f"{PATH}/{added['id']}", json={"events": ["ended"]}), 422)["value"] == "ended"
    assert told(api.post(PATH, json={"address": receiver.url}), 422)["message"] == "is already in the list."
    assert api.delete(f"{PATH}/{added['id']}").status_code == 204
    assert told(api.delete(f"{PATH}/{added['id']}"), 404)["field"] == "channel"


def test_a_test_reports_what_the_receiver_said(api, receiver):
    channel = api.post(PATH, json={"address": receiver.url}).json()["id"]
    assert api.post(f"{PATH}/{channel}/test").json()["state"] == "delivered"
    receiver.statuses.append(403)
    refused = api.post(f"{PATH}/{channel}/test").json()
    assert refused["state"] == "given up" and "status 403: said by the receiver" in refused["reason"]
    assert [one["state"] for one in api.get(PATH).json()["messages"]] == ["given up", "delivered"]


def test_ordinary_users_cannot_reach_internal_services_and_admins_can(api, receiver):
    alice, carol = account("alice"), account("carol", admin=True)
    assert "not encrypted" in told(api.post(PATH, json={"address": receiver.url}, headers=alice), 422)["message"]
    internal = receiver.url.replace("http:", "https:")
    refused = told(api.post(PATH, json={"address": internal}, headers=alice), 422)
    assert "not at a public address" in refused["message"] and "verysecretpart" not in str(refused)
    assert api.post(PATH, json={"address": receiver.url}, headers=carol).status_code == 201


def test_only_admins_are_told_about_the_runs_of_all_users(api, receiver):
    alice, carol = account("alice"), account("carol", admin=True)
    wanted = {"address": receiver.url, "everyone": True}
    assert told(api.post(PATH, json=wanted, headers=alice), 403)["field"] == "everyone"
    shared = api.post(PATH, json=wanted, headers=carol).json()
    assert [one["id"] for one in api.get(PATH).json()["channels"]] == [shared["id"]]
    assert api.get(PATH, headers=alice).json()["channels"] == []


def test_a_channel_of_another_user_can_neither_be_tested_nor_removed(api, receiver):
    channel = api.post(PATH, json={"address": receiver.url}).json()["id"]
    alice = account("alice")
    for answer in (
        api.post(f"{PATH}/{channel}/test", headers=alice),
        api.delete(f"{PATH}/{channel}", headers=alice),
        api.put(f"{PATH}/{channel}", json={"events": ["failed"]}, headers=alice),
    ):
        told(answer, 403)
    assert receiver.requests == []


def test_e_mail_needs_a_mail_server(api, home, monkeypatch):
    assert "no mail server" in told(api.post(PATH, json={"address": "a@example.org"}), 422)["message"]
    use(monkeypatch, DATA_DIR=str(home), SMTP_URL="smtp://127.0.0.1:9", SMTP_FROM="l@example.org")
    channel = api.post(PATH, json={"address": "a@example.org"}).json()
    assert (channel["kind"], channel["address"]) == ("email", "a@example.org")
    assert "could not be used" in api.post(f"{PATH}/{channel['id']}/test").json()["reason"]


def test_an_open_page_gets_the_messages_after_its_last_one(api):
    from held_runs import claim

    from training.config.run_config import RunConfig
    from worker.store import claims, runs

    assert api.put(f"{PATH}/browser", json={"events": ["failed"]}).json() == {"events": ["failed"]}
    first = api.get(f"{PATH}/browser").json()
    with database.write() as session:
        run = runs.create(session=session, config=RunConfig(model="m", data="d"), dataset_id=None)
    claimed = claim(run.id)
    with database.write() as session:
        claims.finish(
            session=session,
            run_id=run.id,
            attempt=claimed.attempt,
            status=Status.FAILED,
            error={"message": "It broke."},
        )
    news = api.get(f"{PATH}/browser", params={"after": first["next"]}).json()
    assert [(one["title"], one["address"]) for one in news["messages"]] == [("m on d failed", f"/run?id={run.id}")]
    assert "It broke." in news["messages"][0]["text"]
    assert api.get(f"{PATH}/browser", params={"after": news["next"]}).json()["messages"] == []
    api.put(f"{PATH}/browser", json={"events": []})
    assert api.get(PATH).json()["channels"] == []


def test_settings_show_folders_with_their_variables_and_keep_the_default_model(api, home):
    shown = api.get("/api/settings").json()
    folder = next(one for one in shown["folders"] if one["name"] == "Data folder")
    assert (folder["value"], folder["source"]) == (str(home), "LATHE_DATA_DIR")
    assert api.put("/api/settings", json={"model": " org/model "}).json()["preferences"]["model"] == "org/model"
    assert told(api.put("/api/settings", json={"model": "m" * 501}), 422)["field"] == "model"
    prices = api.put("/api/settings", json={"price_gpu_hour": "h100=2.50", "price_kwh": "0.30"}).json()["preferences"]
    assert prices | {"model": "org/model", "price_gpu_hour": "h100=2.50", "price_kwh": "0.30", "plots": None} == prices
    assert told(api.put("/api/settings", json={"price_kwh": "cheap"}), 422)["field"] == "price_kwh"
    alice = api.get("/api/settings", headers=account("alice")).json()
    assert not any(alice["preferences"].values()) and str(home) not in str(alice)
    assert alice["account"]["role"] == "user"


def test_the_arrangement_of_plots_is_kept_and_nothing_else_is(api):
    plots = {"axis": "time", "smoothing": "Light", "log": True, "clip": False, "order": ["loss"], "without": ["memory"]}
    alice = account("alice")
    assert api.put("/api/settings", json={"plots": plots}, headers=alice).json()["preferences"]["plots"] == plots
    api.put("/api/settings", json={"model": "org/model"}, headers=alice)
    assert api.get("/api/settings", headers=alice).json()["preferences"]["plots"] == plots
    assert api.get("/api/settings").json()["preferences"]["plots"] is None
    for wrong in ({"colors": 1}, {"order": ["x"] * 201}, {"without": ["x" * 201]}, {"log": None}):
        assert api.put("/api/settings", json={"plots": plots | wrong}, headers=alice).status_code == 422, wrong


def test_users_replace_their_own_token(api):
    alice = account("alice")
    answer = api.post("/api/settings/token", headers=alice)
    assert answer.json()["name"] == "alice"
    assert api.get("/api/settings", headers=alice).status_code == 401
    fresh = {"Authorization": f"Bearer {answer.json()['token']}"}
    assert api.get("/api/settings", headers=fresh).json()["account"]["name"] == "alice"


def test_the_server_s_token_is_replaced_unless_the_environment_sets_it(api, home, monkeypatch):
    before = server_token.server_token(get_settings())
    assert api.post("/api/settings/token").json()["token"] == server_token.server_token(get_settings()) != before
    use(monkeypatch, DATA_DIR=str(home), TOKEN="t" * 40)
    assert told(api.post("/api/settings/token"), 409)["field"] == "LATHE_TOKEN"
