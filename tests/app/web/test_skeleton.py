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
