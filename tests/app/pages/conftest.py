"""A server, a browser and a page for the tests of pages."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from environment import use
from page_log import PageLog
from sqlmodel import delete
from web import CHROMIUM, CHROMIUM_FLAGS, LIVE_ONLY
from web import site as served_site

from worker.settings import get_settings
from worker.store import database
from worker.store.tables import Dataset, Machine, Run


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Iterator[tuple[str, Path]]:
    """A server's address and its data folder."""
    folder = tmp_path_factory.mktemp("site") / "home"
    with served_site(folder) as served:
        yield served.address, folder


@pytest.fixture(scope="session")
def profile(tmp_path_factory) -> Path:
    """The browser's folder: it keeps Gradio's scripts compiled, so that a page opens sooner."""
    return tmp_path_factory.mktemp("profile")


@pytest.fixture(scope="module")
def window(site, profile):
    """One browser for a file's tests. Beyond them its event loop would disturb others."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path=CHROMIUM, args=CHROMIUM_FLAGS, base_url=site[0],
            viewport={"width": 1280, "height": 900},
        )  # fmt: skip
        context.clear_cookies()
        context.set_default_timeout(180_000)  # other tests use the cores too
        context.add_init_script(LIVE_ONLY)
        yield context
        context.close()


@pytest.fixture
def page(site, window, monkeypatch):
    """An empty installation's page; at the end nothing outside the server was asked for and no script has failed."""
    address, folder = site
    use(monkeypatch, DATA_DIR=str(folder))
    with database.write() as session:
        session.exec(delete(Run))
        session.exec(delete(Dataset))
        session.exec(delete(Machine))
    opened = window.new_page()
    opened.log = PageLog(opened)
    opened.goto("/healthz")
    opened.evaluate("localStorage.clear()")
    outside: list[str] = []
    errors: list[str] = []
    opened.on("request", lambda request: None if _inside(request.url, address) else outside.append(request.url))
    opened.on("pageerror", lambda error: errors.append(str(error)))
    yield opened
    assert outside == []
    assert errors == []
    opened.close()
    database.dispose()
    get_settings.cache_clear()


def _inside(url, address):
    return url.startswith((address, "data:", "blob:"))
