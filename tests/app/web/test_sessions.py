"""The states that the server keeps of open pages: of each user only so many, and none of what their fields show."""

import gc
import tracemalloc

import pytest
from web import account, client

from app.web import sessions


@pytest.fixture
def api(home):
    return client()


def called(api, name, session, headers, data):
    """Calls the handler of a page by its name."""
    handlers = api.get("/config").json()["dependencies"]
    number = next(item["id"] for item in handlers if item["api_name"] == name)
    body = {"fn_index": number, "data": data, "session_hash": session}
    answer = api.post("/gradio_api/run/predict", json=body, headers=headers)
    assert answer.status_code == 200, answer.text[:300]
    return answer.json()["data"]


def one_more_row(api, session, headers):
    """How many lines the page New sweep has after one more, which its session counts."""
    answer = called(api, "row_added", session, headers, [None])
    return sum(line.get("visible", False) for line in answer[2:])


def test_the_oldest_session_of_a_user_is_forgotten_and_those_of_others_are_not(api, monkeypatch):
    monkeypatch.setattr(sessions, "MOST", 3)
    alice, eve = account("alice"), account("eve")
    assert [one_more_row(api, "alices", alice) for _ in range(2)] == [3, 4]
    for number in range(8):
        assert one_more_row(api, f"eves{number}", eve) == 3
    assert one_more_row(api, "alices", alice) == 5
    assert one_more_row(api, "eves7", eve) == 4
    kept = [name for name in api.app.state.blocks.state_holder.session_data if name.startswith("eves")]
    assert kept == ["eves5", "eves6", "eves7"]
    assert one_more_row(api, "eves0", eve) == 3  # begins again


def test_what_is_typed_is_not_kept_with_the_session(api):
    config = api.get("/config").json()
    values = {component["id"]: component["props"].get("value") for component in config["components"]}
    handler = next(item for item in config["dependencies"] if item["api_name"] == "refreshed")
    data = [values[number] for number in handler["inputs"]]
    data[0] = data[5] = "x" * 1_000_000
    called(api, "refreshed", "first", {}, data)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(5):
            called(api, "refreshed", f"typed{number}", {}, data)
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < 3_500_000, kept  # the components of five sessions take 1.5 MB, and one text of each 5 MB
