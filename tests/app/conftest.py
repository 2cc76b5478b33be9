"""A server and a page of Chromium for the tests of pages."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import LIVE_ONLY, chromium
from environment import use
from sqlmodel import delete
from web import site as served_site

from worker.settings import get_settings
from worker.store import database
from worker.store.tables import Dataset, Machine, Run


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Iterator[tuple[str, Path]]:
    """The address and the data folder of one server for all tests."""
    folder = tmp_path_factory.mktemp("site") / "home"
    with served_site(folder) as served:
        yield served.address, folder


@pytest.fixture
def emptied(site, monkeypatch):
    """The server with an empty database, which is also this process's."""
    use(monkeypatch, DATA_DIR=str(site[1]))
    with database.write() as session:
        for table in (Run, Dataset, Machine):
            session.exec(delete(table))
    yield site
    database.dispose()
    get_settings.cache_clear()


@pytest.fixture
def page(emptied, request):
    """A page of the server; at the end nothing outside the server was asked for and no script has failed."""
    address, _ = emptied
    outside: list[str] = []
    errors: list[str] = []
    with chromium(request.config, address).page(LIVE_ONLY) as opened:
        opened.on("request", lambda request: None if _inside(request.url, address) else outside.append(request.url))
        opened.on("pageerror", lambda error: errors.append(str(error)))
        yield opened
    assert outside == []
    assert errors == []


def _inside(url, address):
    return url.startswith((address, "data:", "blob:"))
