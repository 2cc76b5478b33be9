"""The first drawing of each page: the server's own HTML, in place until the live page is."""

import json
from urllib.parse import quote

import pytest
from browser import IN_BROWSER, becomes_live, chromium
from web import client, html

from app.web.addresses import PAGES
from app.web.first_drawing import gradio_files, parts
from training.config.run_config import RunConfig
from worker.store import database, runs

HELD = """let lathe; window.held = true;
Object.defineProperty(window, "lathe", { get: () => lathe, set(value) {
  lathe = value;
  if (!value.live || value.live.slow) return;
  const live = value.live;
  const slow = (handlers) => (window.held ? setTimeout(slow, 20, handlers) : live(handlers));
  value.live = Object.assign(slow, { slow: true });
} })"""
"""Holds a page in its first drawing until `window.held` is false."""
PLACES = """() => Object.fromEntries([...(document.querySelector("#first-drawing") ?? document.querySelector("gradio-app"))
  .querySelectorAll("h1, .title, .row, table, #search, .form-column, #basic, #setting-model, #setting-strategy, .beside")]
  .map((one) => [one, one.getBoundingClientRect()]).filter(([, box]) => box.width && box.top < 600)
  .map(([one, box], place) => [`${place} ${one.tagName} ${one.id}`, [box.left, box.top, box.width].map(Math.round)]))"""
SETTLED = f"before => JSON.stringify(({PLACES})()) === JSON.stringify(before)"
DOUBLED = (
    "[...document.querySelectorAll('[id]')].map((one) => one.id).filter((id, at, all) => id && all.indexOf(id) !== at)"
)
FILLED = tuple(page.path for page in PAGES if not page.is_read)


def stored(name, **settings):
    with database.write() as session:
        config = RunConfig(model="m", data="d.jsonl", name=name, **settings)
        return runs.create(session=session, config=config, dataset_id=None, name=name).id


def test_the_first_response_has_the_runs_of_the_database_escaped(home):
    path = f"/new?clone={stored('<b>mine</b>')}"
    assert "&lt;b&gt;mine&lt;/b&gt;" in html(client(), path)
    assert "<b>mine</b>" not in client().get(path).text


def test_it_is_of_the_address(home):
    assert "Cloned from" in html(client(), f"/new?clone={stored('one')}")


def test_every_page_has_one_and_every_control_in_it_is_inert(home):
    for path in FILLED:
        drawn = html(client(), path)
        assert "<h1" in drawn or "<h2>" in drawn, path
        for control in ("<button", "<textarea", "<select"):
            for tag in drawn.split(control)[1:]:
                assert "inert" in tag.partition(">")[0], (path, tag[:200])


def test_the_form_shows_the_draft_that_the_browser_keeps(home):
    web = client()
    web.cookies.set("lathe-draft", quote(json.dumps({"values": {"learning_rate": "0.00077"}, "parent": ""})))
    assert "0.00077" in html(web, "/new")
    web.cookies.set("lathe-draft", "no json")
    assert "0.00077" not in html(web, "/new")


def test_a_page_whose_handler_fails_still_opens(home, monkeypatch, caplog):
    from app.web.first_drawing.drawing import Values

    monkeypatch.setattr(Values, "opened", lambda *_: {}[0])
    answer = client().get("/new")
    assert answer.status_code == 200 and "first-drawing" not in answer.text
    assert "The first drawing of /new failed." in caplog.text


def test_this_version_of_gradio_has_the_classes_that_are_drawn(home):
    client().get("/new")
    assert gradio_files.scoped.cache_info().currsize > 15
    for kind in (*parts.DRAWN, "row", "column", "form", "tabs", "tabitem"):
        assert gradio_files.files(kind), kind
    assert parts.scoped(r"\.unequal-height\.(svelte-\w+)").startswith("svelte-")


@pytest.fixture
def opened(emptied, request):
    """A page that stays in its first drawing."""
    with chromium(request.config, emptied[0]).page(HELD) as page:
        page.faults = []
        page.on("console", lambda said: page.faults.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: page.faults.append(str(error)))
        yield page


class TestInABrowser:
    pytestmark = IN_BROWSER

    def test_the_live_page_takes_its_place_without_a_shift(self, opened, subtests):
        for path in FILLED:
            with subtests.test(path):
                opened.goto(path)
                before = opened.evaluate(PLACES)
                assert before
                opened.evaluate("window.held = false")
                becomes_live(opened)
                opened.wait_for_function(SETTLED, arg=before)  # a busy browser finishes its layout later
                assert opened.locator("#first-drawing").count() == 0
                assert opened.evaluate(DOUBLED) == []
        assert opened.faults == []

    def test_a_click_that_begins_in_it_is_not_lost(self, opened):
        opened.goto(f"/new?clone={stored('alpha')}")
        link = opened.locator("#first-drawing .banner a")
        box = link.bounding_box()
        opened.mouse.move(box["x"] + 5, box["y"] + 5)
        opened.mouse.down()
        opened.evaluate("lathe.loaded = ((loaded) => () => { loaded(); window.complete = true; })(lathe.loaded)")
        opened.evaluate("window.held = false")
        opened.wait_for_function("window.complete")
        opened.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        opened.mouse.up()
        opened.wait_for_url("**/run?id=*")
