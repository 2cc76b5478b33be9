"""Chromium for tests: one for all tests of a process, whose profile and renderer keep the compiled scripts of the pages."""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from page_log import PageLog
from patience import LOOK_SECONDS, QUIET_SECONDS, Progress

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--renderer-process-limit=1"]
SHOWN = """new Promise((done) => {
  const shown = document.body.innerText + "\\nhidden: " + document.body.textContent.slice(0, 3000);
  const marks = performance.getEntriesByType("mark").map(({ name, startTime }) => `${name} at ${startTime.toFixed()} ms`);
  const tell = (frames) => done(`it is ${document.visibilityState}, ${frames}; marks: ${marks}\\n${shown}`);
  requestAnimationFrame(() => tell("frames are drawn"));
  setTimeout(() => tell("no frame is drawn"), 2000);
})"""
ROUND_MS, MOST_REQUESTS = 1000, 300  # a page that repeats its requests sends the next before
MOST_LOOKS = 80  # without a request, 1.5 s each; a page that waits for an animation is not idle
GUARD_MS = 15 * 60_000  # pages that stand still fail sooner, by _watch
IN_BROWSER = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: apt-get install chromium)"),
]
_OPEN = pytest.StashKey[dict[str, "Chromium"]]()


def chromium(config: pytest.Config, base_url: str) -> "Chromium":
    """The Chromium of this process for this server; it ends with the session."""
    opened = config.stash.setdefault(_OPEN, {})
    if base_url not in opened:
        opened[base_url] = Chromium(base_url)
        config.add_cleanup(opened[base_url].close)
    return opened[base_url]


@contextmanager
def opened(config: pytest.Config, address: str) -> Iterator[Any]:
    """A page of the server; at the end nothing outside the server was asked for and no script has failed."""
    outside: list[str] = []
    errors: list[str] = []
    inside = (address, "data:", "blob:")
    with chromium(config, address).page() as page:
        page.on("request", lambda request: None if request.url.startswith(inside) else outside.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        yield page
    assert (outside, errors) == ([], [])


class Chromium:
    """A browser. Playwright's event loop counts as running only while a test has a page: otherwise asyncio.run refuses to run."""

    def __init__(self, base_url: str) -> None:
        from playwright.sync_api import sync_playwright

        self._profile = tempfile.mkdtemp(prefix="lathe-chromium-")
        self._playwright = sync_playwright().start()
        self._loop = asyncio.get_running_loop()
        self._context = self._playwright.chromium.launch_persistent_context(
            self._profile, executable_path=CHROMIUM, args=FLAGS, base_url=base_url,
            viewport={"width": 1280, "height": 900}, reduced_motion="reduce",
        )  # fmt: skip
        self._context.set_default_timeout(GUARD_MS)
        self._first = self._context.pages[0]
        self._first.goto("/healthz")  # keeps the process that renders the server's pages
        asyncio._set_running_loop(None)

    @contextmanager
    def page(self, *scripts: str) -> Iterator[Any]:
        """A new page of a browser that has stored nothing, in which the scripts run first. Its `clock` would be that of all later
        pages too: a test that sets it needs a browser of its own."""
        asyncio._set_running_loop(self._loop)
        page = self._context.new_page()
        page.log = PageLog(page)
        for script in scripts:
            page.add_init_script(script)
        watch = self._loop.create_task(_watch(page))
        try:
            yield page
        finally:
            watch.cancel()
            page.close()
            self._context.clear_cookies()
            self._first.evaluate("localStorage.clear()")
            asyncio._set_running_loop(None)

    def close(self) -> None:
        asyncio._set_running_loop(self._loop)
        self._context.close()
        self._playwright.stop()
        shutil.rmtree(self._profile, ignore_errors=True)


def becomes_live(page: Any) -> None:
    """Waits until all handlers that fill the page have ended. A user cannot click before, since the skeleton is in its place;
    a test could, and the last handler would undo what it did."""
    page.wait_for_function("() => performance.getEntriesByName('lathe-live').length > 0")


def says(page: Any, selector: str, *words: str) -> None:
    """Waits until the element contains all words."""
    for word in words:
        page.locator(selector, has_text=word).first.wait_for()


def requests_of(page: Any) -> list[str]:
    """The addresses that the page asks for from now on. Each page asks every two seconds whether the server is there, which is not
    among them."""
    sent: list[str] = []
    page.on("request", lambda request: request.url.endswith("/healthz") or sent.append(request.url))
    return sent


def becomes_quiet(page: Any) -> None:
    """Waits until the page sends no more requests; fails if it sends them without end."""
    sent = requests_of(page)
    before = -1
    while len(sent) > before or page.log.is_waiting():
        before = len(sent)
        assert before < MOST_REQUESTS, sent[-5:]
        page.wait_for_timeout(ROUND_MS)


def field(page: Any, name: str) -> Any:
    """The input of a setting on New run, in its opened group."""
    reveal(page, name)
    return page.locator(f"#setting-{name} textarea, #setting-{name} input").first


def reveal(page: Any, name: str) -> None:
    """Opens the group of a setting on New run."""
    page.wait_for_function("window.lathe?.reveal && document.querySelector('.group .fold')")
    page.evaluate("name => lathe.reveal(name)", name)


def choose(page: Any, name: str, choice: str) -> None:
    """Clicks a choice of a setting on New run."""
    reveal(page, name)
    page.locator(f"#setting-{name} label", has_text=choice).first.click()


def pick(page: Any, name: str, choice: str) -> None:
    """Picks from a setting's drop-down list on New run."""
    field(page, name).click()
    page.get_by_role("option", name=choice, exact=True).click()


async def _watch(page: Any) -> None:
    """Closes the page when all processes stand still, or it asks for nothing more: what waits for it fails, with what it shows.

    It runs only while the test waits for the browser.
    """
    progress, looks = Progress(quiet=QUIET_SECONDS / 3), 0
    sent = page.log.ended()
    while not progress.has_stopped() and looks < MOST_LOOKS:
        await asyncio.sleep(LOOK_SECONDS * 3)
        before, sent = sent, page.log.ended()
        looks = looks + 1 if sent is not None and sent == before else 0
    own, shown = page._impl_obj, "nothing"
    with contextlib.suppress(Exception):
        shown = await own.evaluate(SHOWN, None)
    told = "\n".join([*page.log.lines(), f"{own.url} shows:", shown, progress.describe()])
    await own.close(None, f"nothing more happens on the page:\n{told}")
