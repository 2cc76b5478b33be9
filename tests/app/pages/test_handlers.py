"""Handlers of pages answer a call without values, as after a restart of the server, which forgets the state of open pages."""

from web import client

CHECKED_BY_GRADIO = {"channel_added"}
"""Gradio refuses None for a group of boxes, before the handler."""


def test_every_handler_answers_a_call_without_values(home):
    web = client()
    called = [item for item in web.get("/config").json()["dependencies"] if item["backend_fn"]]
    failed = set()
    for item in called:
        body = {"fn_index": item["id"], "data": [None] * len(item["inputs"]), "session_hash": "x"}
        answer = web.post("/gradio_api/run/predict", json=body, headers={"Referer": "http://127.0.0.1/"})
        if answer.status_code >= 500:
            failed.add(item["api_name"])
    assert len(called) > 100 and failed == CHECKED_BY_GRADIO
