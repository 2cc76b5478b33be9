"""Pages that are read: the parts of a template, and what the server sends when they change."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from browser import IN_BROWSER, says
from fastapi import FastAPI
from prepared import STARTER
from sqlalchemy.exc import OperationalError
from sqlmodel import col, update
from starlette.datastructures import QueryParams
from starlette.testclient import TestClient
from web import account, client

from app.pages.common.view import View
from worker.settings import get_settings
from worker.store import database
from worker.store.tables import Sweep
from worker.sweeps import start
from worker.sweeps.spec import parse_sweep

NOTHING = QueryParams()
GONE = OperationalError("SELECT", {}, Exception("gone"))


def new_sweep() -> Sweep:
    config = {"model": str(STARTER), "data": str(STARTER / "train.jsonl"), "max_steps": 4}
    return start.start(parse_sweep({"config": config, "space": {"lora_r": [4, 8]}}))


def messages(view: View, sent: str, count: int) -> list[dict[str, Any]]:
    """The next `count` messages to a page that shows the version `sent`."""

    async def taken(stream: AsyncIterator[bytes]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        async for event in stream:
            lines = event.decode().splitlines()
            found += [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
            if len(found) == count:
                break
        return found

    return asyncio.run(taken(view._stream(NOTHING, sent)))


def sweeps_of(*contexts: Any) -> View:
    """The page Sweeps with these contexts, one after the other; an exception is raised."""
    left = list(contexts)

    def context(_: QueryParams) -> dict[str, Any]:
        now = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(now, Exception):
            raise now
        return {"words": None, **now}

    view = View("/sweeps", "sweeps.html", context, seconds=0.0)
    view._latest._seconds = 0.0  # nothing is shared between the readings of a test
    return view


def test_a_page_has_no_script_of_its_own_and_allows_none(home: None) -> None:
    answer = client().get("/sweeps")
    assert answer.status_code == 200 and "No sweeps yet" in answer.text
    assert "<script>" not in answer.text and "gradio-app" not in answer.text
    policy = answer.headers["content-security-policy"]
    assert "script-src 'self';" in policy and "unsafe-eval" not in policy and "nonce" not in policy


def test_text_of_people_is_escaped(home: None) -> None:
    sweep = new_sweep()
    with database.write() as session:
        session.exec(update(Sweep).where(col(Sweep.id) == sweep.id).values(name="<script>alert(1)</script>"))
    text = client().get("/sweeps").text
    assert "<script>alert" not in text and "&lt;script&gt;alert(1)" in text


def test_a_page_without_a_database_says_so_and_has_no_parts() -> None:
    application = FastAPI()
    application.include_router(sweeps_of(GONE).router())
    answer = TestClient(application).get("/sweeps")
    assert answer.status_code == 200 and "data-part" not in answer.text
    assert 'role="alert"><b>The database is unreachable.' in answer.text and 'data-shown=""' in answer.text


def test_only_changes_are_sent_and_trouble_once() -> None:
    view = sweeps_of({"sweeps": []}, {"sweeps": []}, GONE, GONE, {"sweeps": []})
    first, trouble, again = messages(view, "another", 3)
    assert list(first["parts"]) == ["list"] and "No sweeps yet" in first["parts"]["list"]
    assert trouble == {"unreachable": True}
    assert again == {"parts": {}}  # what the page shows is still right


def test_the_list_is_that_of_the_viewer(home: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATHE_VISIBILITY", "own")
    get_settings.cache_clear()
    try:
        new_sweep()
        api = client(visibility="own")
        assert "No sweeps yet" not in api.get("/sweeps").text
        assert "No sweeps yet" in api.get("/sweeps", headers=account("alice")).text
    finally:
        get_settings.cache_clear()


class TestInChromium:
    pytestmark = IN_BROWSER

    def test_what_is_new_appears_by_itself(self, page: Any) -> None:
        page.goto("/sweeps")
        says(page, ".empty", "No sweeps yet")
        button = page.locator(".empty a.button")
        button.focus()
        sweep = new_sweep()
        says(page, "table.sets td.name a", sweep.name)
        assert page.title() == "Sweeps - Lathe"
        assert page.evaluate("document.activeElement.getAttribute('href')") == f"/sweep?id={sweep.id}"
