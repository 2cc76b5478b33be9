"""Pages in a real browser: first and useful paint, time until they are live, requests, bytes, and what one costs while it is open.

Useful paint: the first frame in which the page's own current content, as the selector names it, is visible to a person.
Live: the frame in which its controls work and its load handlers have answered (`lathe-live`, set by static/lathe.js).
"""

import shutil
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Error, Page, sync_playwright

from benchmarks.pages.server import Server

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
_PATIENCE_MS = 300_000  # on a busy machine
# The time of the first frame in which the useful content is there.
_PAINT = """(selector) => {
  const look = () => {
    const shown = [...document.querySelectorAll(selector)].some(
      (found) => found.getClientRects().length && found.checkVisibility({ visibilityProperty: true }));
    requestAnimationFrame(shown ? () => { window.usefulPaint = performance.now(); } : look);
  };
  look();
}"""
# Functions, since the pages' security policy forbids evaluating text.
_FIRST = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
_PAINTED = "() => window.usefulPaint"
_LIVE = "() => performance.getEntriesByName('lathe-live')[0]?.startTime"


@dataclass(frozen=True)
class Measured:
    """A page to measure; `selector` names its useful content. Only Lathe's pages say when they are live."""

    name: str
    server: Server
    path: str
    selector: str
    is_own: bool = True


@dataclass(frozen=True)
class Load:
    """Milliseconds until the first and the useful paint, and until it is live (-1: it does not say); kB and requests until then."""

    first_ms: float
    useful_ms: float
    live_ms: float
    kb: float
    requests: float

    @classmethod
    def median(cls, loads: Sequence["Load"]) -> "Load":
        """The median of each figure."""
        names = asdict(loads[0])
        return cls(**{name: statistics.median(getattr(load, name) for load in loads) for name in names})


@dataclass(frozen=True)
class PageCost:
    """Medians of the loads of a page with an empty cache and with a full one, and its costs for each second that it is open."""

    page: str
    cold: Load
    warm: Load
    open_bytes_per_second: float
    open_cpu_ms_per_second: float
    open_browser_ms_per_second: float


def measure(
    pages: Sequence[Measured], repeat: int, open_seconds: float, tell: Callable[[PageCost], None]
) -> list[PageCost]:
    """Loads all pages cold and warm, `repeat` times one after the other, so that what else the machine does counts for all alike.

    Then leaves each open. `tell` gets the figures of a page as soon as they are complete; a page that fails is left out.
    """
    loads: dict[str, list[tuple[Load, Load]]] = {page.name: [] for page in pages}
    costs: list[PageCost] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        for number in range(repeat):
            for page in pages:
                with _failures(page), _context(browser) as context:
                    loads[page.name].append((_load(context, page), _load(context, page)))
                print(f"round {number + 1} of {repeat}: {page.name}", file=sys.stderr, flush=True)
        for page in pages:
            with _failures(page), _context(browser) as context:
                cold, warm = (Load.median(those) for those in zip(*loads[page.name], strict=True))
                costs.append(PageCost(page.name, cold, warm, *_open(browser, context, page, open_seconds)))
                tell(costs[-1])
        browser.close()
    return costs


@contextmanager
def _failures(page: Measured) -> Iterator[None]:
    try:
        yield
    except (Error, ValueError) as error:
        print(f"{page.name} could not be measured: {error}", file=sys.stderr, flush=True)


@contextmanager
def _context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(_PATIENCE_MS)
    try:
        yield context
    finally:
        context.close()


def _load(context: BrowserContext, measured: Measured) -> Load:
    page = context.new_page()
    traffic = _traffic(page)
    page.add_init_script(f"({_PAINT})({measured.selector!r})")
    _goto(page, measured)
    times = [float(page.evaluate(figure)) for figure in (_FIRST, _PAINTED)]
    live = float(page.evaluate(_LIVE)) if measured.is_own else -1.0
    received, requests = traffic["bytes"], traffic["requests"]
    page.close()
    return Load(times[0], times[1], live, received / 1000, requests)


def _goto(page: Page, measured: Measured) -> None:
    page.goto(measured.server.address + measured.path)
    page.wait_for_function(_PAINTED)
    if measured.is_own:
        page.wait_for_function(_LIVE)


def _open(browser: Browser, context: BrowserContext, measured: Measured, seconds: float) -> tuple[float, float, float]:
    """Bytes, and milliseconds of processor time of the server and of the browser, for each second that the page is open."""
    page = context.new_page()
    traffic = _traffic(page)
    page.add_init_script(f"({_PAINT})({measured.selector!r})")
    _goto(page, measured)
    page.wait_for_timeout(3000)
    processes = browser.new_browser_cdp_session()

    def used() -> tuple[float, float, float]:
        own = processes.send("SystemInfo.getProcessInfo")["processInfo"]
        return traffic["bytes"], measured.server.cpu_seconds() * 1000, sum(one["cpuTime"] for one in own) * 1000

    before = used()
    page.wait_for_timeout(seconds * 1000)
    received, server, browsing = ((now - earlier) / seconds for now, earlier in zip(used(), before, strict=True))
    return received, server, browsing


def _traffic(page: Page) -> dict[str, int]:
    """Counts what the page receives over the network, compressed as it is sent; streams too."""
    counted = {"bytes": 0, "requests": 0}
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")

    def got(event: dict[str, Any]) -> None:
        counted["bytes"] += max(int(event.get("encodedDataLength", 0)), 0)

    def asked(event: dict[str, Any]) -> None:
        counted["bytes"] += (
            int(event["response"].get("encodedDataLength", 0)) if not event["response"].get("fromDiskCache") else 0
        )
        counted["requests"] += 1

    session.on("Network.dataReceived", got)
    session.on("Network.responseReceived", asked)
    return counted


def chromium() -> str:
    """The program Chromium.

    Raises:
        RuntimeError: there is none.
    """
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        raise RuntimeError("This benchmark needs Chromium (Debian: apt-get install chromium).")
    return found
