"""Pages that are read: the parts of a template, and what the server sends when they change."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from browser import IN_BROWSER, becomes_quiet, requests_of, says
from fastapi import FastAPI
from patience import eventually
from prepared import STARTER
from sqlalchemy.exc import OperationalError
from sqlmodel import col, delete, select, update
from starlette.datastructures import QueryParams
from starlette.testclient import TestClient
from web import account, client

from app.documents.sweep import brief
from app.format import sweep_text as words
from app.pages.common.view import View, labelled
from app.web.templating import TEMPLATES
from worker.settings import get_settings
from worker.store import database
from worker.store.tables import Run, Sweep
from worker.sweeps import lifecycle
from worker.sweeps.spec import parse_sweep

NOTHING = QueryParams()
GONE = OperationalError("SELECT", {}, Exception("gone"))


def new_sweep() -> Sweep:
    config = {"model": str(STARTER), "data": str(STARTER / "train.jsonl"), "max_steps": 4}
    return lifecycle.start(parse_sweep({"config": config, "space": {"lora_r": [4, 8]}}))


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


def test_each_cell_of_a_stacked_table_has_its_heading():
    rows = '<tr><th scope="row">a</th><td>1</td></tr><tr class="x"><td>b</td><td>2</td><td></td></tr>'
    assert labelled(rows, ["Name", "<b>"]) == (
        '<tr><th scope="row" data-label="Name">a</th><td data-label="&lt;b&gt;">1</td></tr>'
        '<tr class="x"><td data-label="Name">b</td><td data-label="&lt;b&gt;">2</td><td data-label=""></td></tr>'
    )


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
    assert 'role="alert"><b>The database is unreachable.' in answer.text and 'data-version=""' in answer.text


def test_only_changes_are_sent_and_trouble_once() -> None:
    view = sweeps_of({"sweeps": []}, {"sweeps": []}, GONE, GONE, {"sweeps": []})
    first, trouble, again = messages(view, "another", 3)
    assert list(first["parts"]) == ["list"] and "No sweeps yet" in first["parts"]["list"]
    assert trouble == {"unreachable": True}
    assert again == {"parts": {}}  # what the page shows is still right


def test_of_a_table_only_the_rows_that_changed_are_sent(home: None) -> None:
    with database.read() as session:
        first, second = (brief(session, sweep).model_dump() for sweep in (new_sweep(), new_sweep()))
    changed, found = second | {"name": "<other>"}, {"words": words}
    start = [first, second]
    contexts = [{"sweeps": listed, **found} for listed in (start, start, [first, changed], [changed], [])]
    whole, row, fewer, none = (message["parts"]["list"] for message in messages(sweeps_of(*contexts), "another", 4))
    assert second["name"] in whole and "No sweeps yet" in none
    assert list(row) == [second["id"]] and "&lt;other&gt;" in row[second["id"]]
    assert fewer.count("<tr data-key") == 1


def test_what_a_browser_remembers_counts_where_the_address_says_nothing() -> None:
    def context(query: QueryParams) -> dict[str, Any]:
        return {"sweeps": [], "seen": asked.append(query.getlist("sort"))}

    asked: list[list[str]] = []
    application = FastAPI()
    application.include_router(View("/sweeps", "sweeps.html", context, remembered=("sort",)).router())
    browser = TestClient(application, cookies={"lathe_sort": "by%20name", "lathe_other": "x"})
    for address in ("/sweeps", "/sweeps?sort=id", "/sweeps?other=1"):
        assert browser.get(address).status_code == 200
    assert asked == [["by name"], ["id"], ["by name"]]


def test_a_part_that_becomes_empty_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    view = sweeps_of({"sweeps": []})
    monkeypatch.setattr(View, "parts", lambda *_: {"list": ""})
    [message] = messages(view, "another", 1)
    assert message == {"parts": {"list": ""}}


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

    def test_a_page_whose_changes_are_refused_asks_for_them_again(self, page: Any) -> None:
        page.route("**/api/pages/sweeps?*", lambda route: route.fulfill(status=502), times=1)
        page.goto("/sweeps")
        says(page, "table.sets td.name a", new_sweep().name)

    def test_a_button_asks_sends_its_request_and_shows_what_is_new(self, page: Any) -> None:
        sweep = new_sweep()
        page.goto("/sweeps")
        says(page, "table.sets", sweep.name)
        put(page, action("Stop", f"POST /api/sweeps/{sweep.id}/stop"))
        page.get_by_role("button", name="Stop", exact=True).click()
        dialog = page.get_by_role("dialog", name="Sure?")
        assert page.evaluate("document.activeElement.closest('dialog') !== null")
        page.keyboard.press("Escape")
        dialog.wait_for(state="hidden")
        assert page.evaluate("document.activeElement.textContent") == "Stop"
        page.keyboard.press("Enter")
        dialog.get_by_role("button", name="Yes").click()
        dialog.wait_for(state="hidden")
        eventually(lambda: all(run.status == "stopped" for run in runs_of(sweep)))

    def test_what_a_request_is_refused_for_stands_in_the_dialog_or_on_the_page(self, page: Any) -> None:
        page.goto("/sweeps")
        put(page, action("Stop", "POST /api/sweeps/gone/stop"))
        page.get_by_role("button", name="Stop", exact=True).click()
        page.get_by_role("button", name="Yes").click()
        says(page, "#ask .alert", "gone")
        page.get_by_role("button", name="Cancel").click()
        put(page, '<button type="button" data-do="POST /api/sweeps/lost/stop">At once</button>')
        page.get_by_role("button", name="At once").click()
        says(page, "#said", "lost")

    def test_a_page_of_what_does_not_exist_asks_for_nothing_more(self, page: Any) -> None:
        asked = requests_of(page)
        page.goto("/run?id=gone")
        says(page, "main", "Run not found")
        becomes_quiet(page)
        assert (
            not any("/api/pages/" in address for address in asked) and sum("/run?id=gone" in url for url in asked) == 1
        )

    def test_a_page_of_what_is_deleted_says_so(self, page: Any) -> None:
        sweep = new_sweep()
        page.goto(f"/sweep?id={sweep.id}")
        says(page, "h1", sweep.name)
        with database.write() as session:
            session.exec(delete(Sweep).where(col(Sweep.id) == sweep.id))
        says(page, "main", "Sweep not found")
        assert page.locator("main[data-live='']").count() == 1

    def test_on_a_phone_the_pages_are_in_a_menu_that_closes(self, page: Any) -> None:
        page.set_viewport_size({"width": 390, "height": 844})
        page.goto("/sweeps")
        link, menu = page.get_by_role("link", name="System"), page.get_by_role("button", name="Menu")
        menu.click()
        link.wait_for()
        page.keyboard.press("Escape")
        link.wait_for(state="hidden")
        menu.click()
        page.set_viewport_size({"width": 1280, "height": 844})
        menu.wait_for(state="hidden")
        page.locator("header nav:popover-open").wait_for(state="detached")
        assert link.is_visible()

    def test_links_and_forms_change_the_address_and_the_parts_without_loading_the_page(self, page: Any) -> None:
        page.goto("/sweeps")
        page.evaluate("window.same = true")
        form = '<form data-live data-keeps="sort"><input name="search" aria-label="Search"></form>'
        put(page, f'<a href="?sort=name&page=2">Sort</a>{form}')
        with page.expect_request("**/api/pages/sweeps?sort=name&page=2&**"):
            page.get_by_role("link", name="Sort").click()
        with page.expect_request("**/api/pages/sweeps?search=a+b&sort=name&**"):
            page.get_by_label("Search").fill("a b")
        assert page.evaluate("location.search") == "?search=a+b&sort=name"
        page.get_by_label("Search").press("Enter")
        page.get_by_role("link", name="Sort").click()
        assert page.get_by_label("Search").input_value() == ""
        page.go_back()
        page.wait_for_function("() => location.search === '?search=a+b&sort=name'")
        assert page.get_by_label("Search").input_value() == "a b"
        page.wait_for_function("() => !document.querySelector('main').hasAttribute('aria-busy')")
        assert page.evaluate("window.same")

    def test_a_list_sends_what_is_chosen_and_returns_to_what_was_if_it_is_refused(self, page: Any) -> None:
        sweep = new_sweep()
        run = runs_of(sweep)[0].id
        page.goto("/sweeps")
        options = "<option>high</option><option selected>normal</option><option>most</option>"
        put(page, f'<select name="priority" aria-label="Priority" data-do="PATCH /api/runs/{run}">{options}</select>')
        page.get_by_label("Priority").select_option("most")
        says(page, "#said", "priority")
        assert page.get_by_label("Priority").input_value() == "normal"
        page.get_by_label("Priority").select_option("high")
        page.locator("#said", has_text="priority").wait_for(state="hidden")
        assert eventually(lambda: runs_of(sweep)[0].priority == 1)

    def test_one_menu_is_open_at_a_time_and_closes_on_escape_and_outside(self, page: Any) -> None:
        page.goto("/sweeps")
        put(page, "".join(f'<details class="menu"><summary>{name}</summary>of {name}</details>' for name in "AB"))
        menus = page.locator("details.menu[open]")
        page.locator("summary", has_text="A").click()
        page.locator("summary", has_text="B").click()
        says(page, "details.menu[open]", "of B")
        assert menus.count() == 1
        page.keyboard.press("Escape")
        assert menus.count() == 0
        assert page.evaluate("document.activeElement.textContent") == "B"
        page.keyboard.press("Enter")
        says(page, "details.menu[open]", "of B")
        page.locator("h1").click()
        assert menus.count() == 0

    def test_a_field_is_read_when_it_is_left_and_what_is_typed_in_another_stays(self, page: Any) -> None:
        page.goto("/sweeps")
        put(
            page,
            '<form data-live="change" data-step><input name="rows" aria-label="Rows"><input name="seed" aria-label="Seed"></form>',
        )
        page.get_by_label("Rows").press_sequentially("12")
        assert page.evaluate("location.search") == ""
        page.evaluate("document.querySelector('[data-part]').textContent = 'of all rows'")
        with page.expect_request("**/api/pages/sweeps?rows=12&**"):
            page.get_by_label("Rows").press("Enter")
        # Each answer is waited for: one that comes late would replace what follows.
        page.wait_for_function("() => document.querySelector('[data-part]').textContent !== 'of all rows'")
        page.evaluate("document.querySelector('[data-part]').textContent = 'of rows=12'")
        page.go_back()
        page.wait_for_function("() => document.querySelector('[data-part]').textContent !== 'of rows=12'")
        assert page.evaluate("location.search") == ""
        # The same form in a part that is sent again.
        page.evaluate(
            """document.querySelector('[data-part]').innerHTML = '<form data-live="change"><input id="seed"></form>'"""
        )
        page.locator("#seed").press_sequentially("7")
        page.evaluate(
            "lathe.view.fill(document.querySelector('[data-part]'), '<form data-live=\"change\"><input id=\"seed\"></form>')"
        )
        assert page.locator("#seed").input_value() == "7"

    def test_a_button_tells_that_it_was_done_and_the_page_shows_something_else(self, page: Any) -> None:
        sweep = new_sweep()
        page.goto("/sweeps?sort=name")
        page.evaluate("window.same = true")
        macros: Any = TEMPLATES.get_template("parts.html").module
        put(page, str(macros.action("Stop", f"POST /api/sweeps/{sweep.id}/stop", then="?sort=age", told="It stops.")))
        page.get_by_role("button", name="Stop", exact=True).click()
        says(page, "[role=status]", "It stops.")
        assert page.evaluate("location.search") == "?sort=age"
        assert page.evaluate("window.same")

    def test_a_form_sends_its_fields_as_values_of_their_kinds_and_says_why_it_is_refused(self, page: Any) -> None:
        page.goto("/sweeps")
        fields = '<input name="judge/url" value="u"><input name="rows" data-kind="number" value="3">'
        fields += '<input name="empty" data-optional>'
        fields += '<input name="tags" data-kind="list" value="a, b"><p class="alert" role="alert" hidden></p>'
        for box in ("f1", "rouge1"):
            fields += f'<input type="checkbox" name="metrics[]" value="{box}" checked>'
        put(page, f'<form data-do="POST /api/runs/gone/stop">{fields}<button type="submit">Send</button></form>')
        with page.expect_request("**/api/runs/gone/stop") as sent:
            page.get_by_role("button", name="Send").click()
        values = {"judge": {"url": "u"}, "rows": 3, "tags": ["a", "b"], "metrics": ["f1", "rouge1"]}
        assert sent.value.post_data_json == values
        says(page, "form .alert", "gone")


def put(page: Any, markup: str) -> None:
    """Adds HTML to the page's main part, as its template could have it."""
    page.evaluate("html => document.querySelector('main').insertAdjacentHTML('beforeend', html)", markup)


def action(label: str, request: str) -> str:
    """The button of the macro with a question."""
    ask = {"heading": "Sure?", "text": "It ends.", "label": "Yes"}
    macros: Any = TEMPLATES.get_template("parts.html").module
    return str(macros.action(label, request, ask=ask))


def runs_of(sweep: Sweep) -> list[Run]:
    with database.read() as session:
        return list(session.exec(select(Run).where(Run.sweep_id == sweep.id)))
