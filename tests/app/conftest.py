"""A server and a page of Chromium for the tests of pages."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from browser import opened
from environment import use
from sqlmodel import delete
from web import site as served_site

from worker.settings import get_settings
from worker.store import database
from worker.store.tables import Dataset, Machine, Run, Sweep


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Iterator[tuple[str, Path]]:
    """The address and the data folder of one server for all tests."""
    folder = tmp_path_factory.mktemp("site") / "home"
    with served_site(folder) as served:
        yield served.address, folder


@pytest.fixture
def emptied(site):
    """The server with an empty database, which is also this process's."""
    with empty_database(site):
        yield site


@pytest.fixture(scope="class")
def emptied_once(site):
    """The same, for tests of a class that only read."""
    with empty_database(site):
        yield site


@contextmanager
def empty_database(site):
    with pytest.MonkeyPatch.context() as monkeypatch:
        use(monkeypatch, DATA_DIR=str(site[1]))
        with database.write() as session:
            for table in (Run, Sweep, Dataset, Machine):
                session.exec(delete(table))
        yield
        database.dispose()
    get_settings.cache_clear()


@pytest.fixture
def page(emptied, request):
    """A page of the emptied server."""
    with opened(request.config, emptied[0]) as page:
        yield page
