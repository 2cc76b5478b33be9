"""What a page of Gradio shows until it is live."""

from browser import IN_BROWSER, becomes_live
from web import client

from app.web.addresses import PAGES

FILLED = tuple(page for page in PAGES if not page.is_read)
DOUBLED = (
    "[...document.querySelectorAll('[id]')].map((one) => one.id).filter((id, at, all) => id && all.indexOf(id) !== at)"
)
HEADING = "() => { const box = document.querySelector('h1').getBoundingClientRect(); return [box.left, box.top].map(Math.round); }"
HELD = """let lathe; window.held = true;
Object.defineProperty(window, "lathe", { get: () => lathe, set(value) {
  lathe = value;
  if (!value.live || value.live.slow) return;
  const live = value.live;
  const slow = (handlers) => (window.held ? setTimeout(slow, 20, handlers) : live(handlers));
  value.live = Object.assign(slow, { slow: true });
} })"""
"""Holds a page in its skeleton until `window.held` is false."""


def test_the_first_response_has_the_name_of_the_page(home):
    for page in FILLED:
        assert f"<h1>{page.name}</h1>" in client().get(page.path).text, page.path
    assert 'id="skeleton"' not in client().get("/sweeps").text


class TestInABrowser:
    pytestmark = IN_BROWSER

    def test_the_live_page_takes_its_place_with_the_heading_where_it_was(self, page, subtests):
        page.add_init_script(HELD)
        for filled in FILLED:
            with subtests.test(filled.path):
                page.goto(filled.path)
                before = page.evaluate(HEADING)
                page.evaluate("window.held = false")
                becomes_live(page)
                page.locator("#skeleton").wait_for(state="detached")
                assert page.evaluate(HEADING) == before
                assert page.evaluate(DOUBLED) == []

    def test_new_run_is_filled_in_and_started_before_it_is_live(self, page):
        page.add_init_script(HELD)
        page.goto("/new")
        page.locator("#first-data").select_option(label="Starter sample: train.jsonl")
        assert page.locator("#first-start").is_disabled()
        page.locator("#first-model").select_option(index=1)
        page.locator("#first-start").click()
        page.evaluate("window.held = false")
        page.wait_for_url("**/run?id=*")
        page.goto("/new")
        chosen = page.locator("#first-data").evaluate("(list) => list.selectedOptions[0].text")
        assert chosen.startswith(("Starter sample: train.jsonl", "train.jsonl"))
        page.locator("#first-task").select_option("pretraining")
        page.locator("#first-task").focus()
        page.evaluate("window.held = false")
        becomes_live(page)
        page.wait_for_function("document.querySelector('#setting-task input').value === 'Continued pretraining'")
        page.wait_for_function("document.activeElement.closest('.setting')?.id === 'setting-task'")
