"""One page in a real browser: useful paint, time until it is live, requests, bytes, and what it costs while it is open.

Useful paint: the first frame in which the page's own current content, as the selector names it, is visible to a person.
Live: the frame in which its controls work and its load handlers have answered (`lathe-live`, set by static/lathe.js).
"""

import statistics
from dataclasses import dataclass
from typing import Any

from playwright.sync_api import BrowserContext, Page, sync_playwright

from benchmarks.pages.server import Server

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
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
_PAINTED = "() => window.usefulPaint"
_LIVE = "() => performance.getEntriesByName('lathe-live')[0]?.startTime"


@dataclass(frozen=True)
class PageCost:
    """Medians over the loads of a page."""

    cold_ms: float
    warm_ms: float
    cold_live_ms: float
    warm_live_ms: float
    cold_kb: float
    warm_kb: float
    requests: int
    open_bytes_per_second: float
    open_cpu_ms_per_second: float


def measure(server: Server, path: str, selector: str, repeat: int, open_seconds: float) -> PageCost:
    """Loads the page `repeat` times cold and warm, then leaves it open."""
    cold, warm = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        for _ in range(repeat):
            context = browser.new_context(viewport={"width": 1280, "height": 900})
            cold.append(_load(context, server.address + path, selector))
            warm.append(_load(context, server.address + path, selector))
            context.close()
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        open_bytes, open_cpu = _open(context, server, path, selector, open_seconds)
        browser.close()
    return PageCost(
        cold_ms=statistics.median(one[0] for one in cold),
        warm_ms=statistics.median(one[0] for one in warm),
        cold_live_ms=statistics.median(one[1] for one in cold),
        warm_live_ms=statistics.median(one[1] for one in warm),
        cold_kb=statistics.median(one[2] for one in cold) / 1000,
        warm_kb=statistics.median(one[2] for one in warm) / 1000,
        requests=int(statistics.median(one[3] for one in cold)),
        open_bytes_per_second=open_bytes,
        open_cpu_ms_per_second=open_cpu,
    )


def _load(context: BrowserContext, address: str, selector: str) -> tuple[float, float, int, int]:
    """Milliseconds to the useful paint and until the page is live, bytes received until then, and requests."""
    page = context.new_page()
    traffic = _traffic(page)
    page.add_init_script(f"({_PAINT})({selector!r})")
    page.goto(address)
    page.wait_for_function(_PAINTED, timeout=60_000)
    page.wait_for_function(_LIVE, timeout=60_000)
    useful, live = float(page.evaluate(_PAINTED)), float(page.evaluate(_LIVE))
    received, requests = traffic["bytes"], traffic["requests"]
    page.close()
    return useful, live, received, requests


def _open(context: BrowserContext, server: Server, path: str, selector: str, seconds: float) -> tuple[float, float]:
    """Bytes and the server's milliseconds of processor time for each second that the page is open."""
    page = context.new_page()
    traffic = _traffic(page)
    page.goto(server.address + path)
    page.wait_for_selector(selector)
    page.wait_for_function(_LIVE, timeout=60_000)
    page.wait_for_timeout(3000)
    received, used = traffic["bytes"], server.cpu_seconds()
    page.wait_for_timeout(seconds * 1000)
    return (traffic["bytes"] - received) / seconds, (server.cpu_seconds() - used) / seconds * 1000


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
    import shutil

    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        raise RuntimeError("This benchmark needs Chromium (Debian: apt-get install chromium).")
    return found
