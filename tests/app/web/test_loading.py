"""A page of which files do not arrive, or whose handlers do not answer (static/loading.js)."""

import pytest
from browser import IN_BROWSER, becomes_live, chromium

pytestmark = IN_BROWSER

NOTICE = "#loading-notice"
SOONER = """for (const ms of [500, 1000, 2000, 30000]) {
  const later = window.setTimeout;
  window.setTimeout = (act, wait, ...given) => later(act, wait === ms ? ms / 20 : wait, ...given);
}"""
"""The waits of static/loading.js, twenty times shorter."""


@pytest.fixture
def page(emptied, request):
    """A page with the shorter waits; `loads` are its requests for documents. With a route, a page takes no file from the cache."""
    with chromium(request.config, emptied[0]).page(SOONER) as page:
        page.loads = []
        page.on("request", lambda request: page.loads.append(request.url) if request.is_navigation_request() else None)
        yield page


def lose(page, pattern, times):
    """Lets the first `times` requests to addresses with the pattern fail, as Chromium does when the network changes."""
    page.route(pattern, lambda route: route.abort("failed"), times=times)


@pytest.mark.parametrize(
    "file",
    [
        "**/assets/index-*.js",
        pytest.param("**/assets/Blocks-*.js", marks=pytest.mark.nightly),
        pytest.param("**/new-run.js?*", marks=pytest.mark.nightly),
        pytest.param("**/lathe.css?*", marks=pytest.mark.nightly),
    ],
)
def test_a_page_without_one_of_its_files_loads_again_by_itself(page, file):
    lose(page, file, times=1)
    page.goto("/new")
    page.wait_for_function("performance.getEntriesByType('navigation')[0]?.type === 'reload'")
    becomes_live(page)
    assert len(page.loads) == 2
    assert page.evaluate("sessionStorage.getItem('lathe-reloads')") == "0"
    assert not page.locator(NOTICE).count()


@pytest.mark.nightly
def test_without_its_first_script_it_loads_again_too(page):
    lose(page, "**/lathe.js?*", times=1)
    page.goto("/new-dataset")
    page.wait_for_function("performance.getEntriesByType('navigation')[0]?.type === 'reload'")
    becomes_live(page)


@pytest.mark.nightly
def test_after_three_reloads_it_says_what_is_wrong_and_offers_a_reload(page):
    lose(page, "**/assets/Index-*.js", times=10_000)
    page.goto("/new")
    page.locator(NOTICE, has_text="did not arrive even after 3 reloads").wait_for()
    assert len(page.loads) == 4
    page.unroute_all()
    page.locator(NOTICE).get_by_role("button", name="Reload").click()
    page.locator(NOTICE).wait_for(state="detached")
    becomes_live(page)


def fail(page, times):
    """Lets the first `times` handlers end with an error."""
    page.route("**/run/predict", lambda route: route.fulfill(status=500, body="failed"), times=times)


def test_a_page_of_which_a_handler_failed_loads_again_by_itself(page):
    fail(page, times=1)
    page.goto("/new")
    becomes_live(page)
    assert len(page.loads) == 2
    assert page.evaluate("sessionStorage.getItem('lathe-reloads')") == "0"


def test_a_handler_that_fails_after_three_reloads_too_is_said_to_have_failed(page):
    fail(page, times=10_000)
    page.goto("/new")
    page.locator(NOTICE, has_text="Its content did not arrive even after 3 reloads. Check the server's log.").wait_for()
    assert len(page.loads) == 4


def test_while_the_server_does_not_answer_the_page_stays_and_says_so(page):
    lose(page, "**/assets/index-*.js", times=1)
    lose(page, "**/healthz", times=10_000)  # until the notice was seen
    page.goto("/new")
    page.locator(NOTICE, has_text="The server does not answer.").wait_for()
    page.unroute("**/healthz")
    page.wait_for_function("performance.getEntriesByType('navigation')[0]?.type === 'reload'")
    becomes_live(page)


def test_a_page_whose_handlers_do_not_answer_says_so_until_they_do(page):
    held = []
    page.route("**/run/predict", lambda route: held.append(route))  # noqa: PLW0108 Playwright sets an attribute of it
    page.goto("/new")
    page.locator(NOTICE, has_text="This page is still loading.").wait_for()
    for route in held:
        route.continue_()
    page.unroute_all()
    becomes_live(page)
    assert not page.locator(NOTICE).count() and len(page.loads) == 1


def test_a_file_that_is_loaded_later_does_not_cost_what_is_typed(page):
    page.goto("/new")
    becomes_live(page)
    page.evaluate("""new Promise((done) => {
      const script = Object.assign(document.createElement("script"), { src: "/static/lathe/none.js", onerror: done });
      document.head.append(script);
    })""")
    page.evaluate(
        "new Promise((done) => setTimeout(done, 500)).then(() => fetch('/healthz'))"
    )  # runs as its waits do: 25 ms
    assert len(page.loads) == 1 and not page.locator(NOTICE).count()
