"""Handlers of pages answer a call without values, as after a restart of the server, which forgets the state of open pages."""

import pytest
from web import client


@pytest.mark.slow
def test_every_handler_answers_a_call_without_values(home):
    web = client()
    called = [item for item in web.get("/config").json()["dependencies"] if item["backend_fn"]]
    refused, failed = set(), set()
    for item in called:
        body = {"fn_index": item["id"], "data": [None] * len(item["inputs"]), "session_hash": "x"}
        answer = web.post("/gradio_api/run/predict", json=body, headers={"Referer": "http://127.0.0.1/"})
        if answer.status_code >= 500:
            failed.add(item["api_name"])
        if answer.status_code == 422:
            refused.add(item["api_name"])
    assert len(called) > 40 and failed == set()
    assert refused == set()


def test_a_value_that_a_component_refuses_is_answered_with_the_reason(home, capfd):
    web = client()
    config = web.get("/config").json()
    radios = {part["id"] for part in config["components"] if part["type"] in ("radio", "dropdown", "checkboxgroup")}
    item = next(item for item in config["dependencies"] if item["backend_fn"] and radios & set(item["inputs"]))
    values = ["no choice" if number in radios else None for number in item["inputs"]]
    for data in (values, []):
        body = {"fn_index": item["id"], "data": data, "session_hash": "y"}
        answer = web.post("/gradio_api/run/predict", json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["field"], error["fix"]) == (422, "data", "Reload the page.")
    assert "Traceback" not in capfd.readouterr().err


EVENT_NAMES = (
    "run", "runs", "page", "columns", "remove",
    "dismiss", "sample", "use", "measure", "free", "add", "all", "delete", "save", "again", "stop", "search",
    "changes", "card", "rotate", "channel", "event", "on", "browser", "events",
)  # fmt: skip
HOSTILE = ("x" * 10_000, "\x1b[2J\u202e", -1, 1e308, True, [], ["a", 5], {"a": {"b": []}}, [[1], [2]])


@pytest.mark.nightly
def test_every_handler_answers_hostile_values_and_events(home, subtests):
    web = client()
    for item in (item for item in web.get("/config").json()["dependencies"] if item["backend_fn"]):
        with subtests.test(f"{item['id']} {item['api_name']}"):
            for value in HOSTILE:
                event = dict.fromkeys(EVENT_NAMES, value)
                for data, sent in (([value] * len(item["inputs"]), value), ([None] * len(item["inputs"]), event)):
                    body = {"fn_index": item["id"], "data": data, "event_data": sent, "session_hash": "z"}
                    answer = web.post("/gradio_api/run/predict?id=%00&runs=,,&page=x&row=-1", json=body)
                    assert answer.status_code < 500, (value, data, sent)
