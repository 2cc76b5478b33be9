"""Fixtures for all tests: an installation in a temporary folder, on SQLite or PostgreSQL."""

import gc
import json
import os
import secrets
import shutil
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import shares
from environment import use
from page_log import PageLog
from psycopg import sql
from sqlalchemy.engine import make_url

from training.config.run_config import RunConfig
from worker.machine.processes import set_child_subreaper
from worker.settings import get_settings
from worker.store import database as db
from worker.store import runs
from worker.store.tables import Run

# A shell makes background processes ignore Ctrl-C, with their children; some tests need it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tiny models train faster on one thread, and several workers of pytest share the cores.
os.environ["OMP_NUM_THREADS"] = "1"

# Processes that outlive their parent become children of the tests, so that waits see them (patience.py).
set_child_subreaper()

POSTGRES_URL = "postgresql+psycopg://postgres@127.0.0.1:5432/postgres"
ON_BOTH_DATABASES = (
    "tests/worker/store/",
    "tests/worker/queue/",
    # Concurrent writers, and values that the engines store or search differently.
    "tests/worker/datasets/test_datasets.py::test_adding_the_same_file_twice",
    "tests/worker/datasets/test_datasets.py::test_unusual_characters",
    "tests/worker/notifications/test_delivery.py::test_two_deliverers",
    "tests/worker/disk/test_freeing.py::test_of_resume_and_freeing",
    "tests/worker/disk/test_retention.py::test_the_rules_are_applied_once",
    "tests/worker/runs/test_submissions.py::test_requests_at_once_with_one_key",
    "tests/app/cli/test_cli.py::test_runs_lists_the_newest_first",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-durations", action="store_true", help="write tests/durations.json, by which processes share the files"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.option.write_durations and not hasattr(config, "workerinput"):
        config.pluginmanager.register(shares.Recorder())


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tells a process of `--dist each` which share of the files it runs."""
    if node.config.getvalue("dist") == "each":
        node.workerinput["share"] = (int(node.gateway.id.removeprefix("gw")), len(node.config.getvalue("tx")))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves the files of other processes unread: importing all of them takes as long as a hundred tests."""
    if collection_path.suffix != ".py" or (share := getattr(config, "workerinput", {}).get("share")) is None:
        return None
    return None if collection_path in shares.files(config, *share) else True


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs tests with a database on SQLite and on PostgreSQL; those of neither store nor queue on PostgreSQL only nightly."""
    if "database" in metafunc.fixturenames:
        path = metafunc.definition.nodeid
        both = path.startswith(ON_BOTH_DATABASES)
        postgresql = "postgresql" if both else pytest.param("postgresql", marks=pytest.mark.nightly)
        metafunc.parametrize("database", ["sqlite", postgresql], indirect=True)


def pytest_collection_finish() -> None:
    """Exempts the thousands of collected tests from each garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds to a failure what happened on the test's page."""
    report = yield
    if report.failed and report.when == "call":
        for fixture in getattr(item, "funcargs", {}).values():
            if isinstance(log := getattr(fixture, "log", None), PageLog):
                report.sections.append(("Page", log.text()))
    return report


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file that tests copy, which is faster than migrating for each test."""
    folder = tmp_path_factory.mktemp("migrated")
    with pytest.MonkeyPatch.context() as monkeypatch:
        use(monkeypatch, DATA_DIR=str(folder))
        db.migrate()
        db.dispose()
    get_settings.cache_clear()
    return folder / "lathe.db"


@pytest.fixture
def bare_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The data folder of an installation that was never started; no other LATHE_ variable is set."""
    folder = tmp_path / "home"
    use(monkeypatch, DATA_DIR=str(folder))
    yield folder
    db.dispose()
    get_settings.cache_clear()


@pytest.fixture
def home(bare_home: Path, migrated: Path) -> Path:
    """The data folder of an installation with a migrated SQLite database and no broker."""
    get_settings().make_folders()
    shutil.copy(migrated, bare_home / "lathe.db")
    return bare_home


@pytest.fixture(scope="session")
def postgresql_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A migrated temporary database on the PostgreSQL server LATHE_TEST_POSTGRES_URL."""
    given = os.environ.get("LATHE_TEST_POSTGRES_URL")
    server = make_url(given or POSTGRES_URL)
    name = f"lathe_test_{os.getpid()}_{secrets.token_hex(3)}"
    try:
        admin = psycopg.connect(
            _conninfo(server.render_as_string(hide_password=False)), autocommit=True, connect_timeout=3
        )
    except psycopg.OperationalError:
        if given:
            raise
        pytest.skip(f"no PostgreSQL answers at {server.host}:{server.port}; LATHE_TEST_POSTGRES_URL names another")
    with closing(admin):
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        admin.execute(sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(sql.Identifier(name)))
        url = server.set(database=name).render_as_string(hide_password=False)
        with pytest.MonkeyPatch.context() as monkeypatch:
            use(monkeypatch, DATA_DIR=str(tmp_path_factory.mktemp("postgresql")), DATABASE_URL=url)
            db.migrate()
            db.dispose()
        get_settings.cache_clear()
        yield url
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def database(request: pytest.FixtureRequest, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An installation with an empty database. The value is the engine's name; `pytest_generate_tests` chooses the engines."""
    if request.param == "sqlite":
        yield "sqlite"
        return
    url = request.getfixturevalue("postgresql_url")
    use(monkeypatch, DATA_DIR=str(home), DATABASE_URL=url)
    yield "postgresql"
    db.dispose()
    _empty(url)


@pytest.fixture
def new_run(database: str) -> Callable[..., Run]:
    """Queues a run with these settings, without a data set and without checking its model."""

    def queue(**settings: object) -> Run:
        config = RunConfig.model_validate({"model": "models/tiny", "data": "rows.jsonl"} | settings)
        with db.write() as session:
            return runs.create(session=session, config=config, dataset_id=None)

    return queue


def _conninfo(url: str) -> str:
    return url.replace("postgresql+psycopg://", "postgresql://", 1)


def _empty(url: str) -> None:
    """Empties all tables, after ending connections of killed processes."""
    others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    with closing(psycopg.connect(_conninfo(url), autocommit=True)) as connection:
        connection.execute(others)
        connection.execute("DELETE FROM run")  # cascades; faster than TRUNCATE on small tables
        connection.execute("DELETE FROM dataset")
        connection.execute("DELETE FROM machine")
        connection.execute("DELETE FROM idempotency_key")
        connection.execute("DELETE FROM notification_channel")
        connection.execute("DELETE FROM preferences")
        connection.execute("DELETE FROM sweep")
        connection.execute("DELETE FROM machine_failure")
        connection.execute("DELETE FROM machine_aside")
        connection.execute("DELETE FROM served_model")
        connection.execute("DELETE FROM account")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """A folder of real data sets beside the project; tests that read it are skipped if it is missing."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the folder of real data sets is not here")
    return folder


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """A valid configuration file of a run."""
    from played_run import model_folder

    (tmp_path / "rows.jsonl").write_text('{"prompt": "one", "completion": "two"}\n' * 40)
    model = model_folder(tmp_path / "model")
    path = tmp_path / "run.yaml"
    lines = [
        "name: from a file",
        f"model: {model}",
        f"data: {tmp_path / 'rows.jsonl'}",
        "lora_r: 8",
        "learning_rate: 0.001",
    ]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A file of 40 rows; row 40 is long, and row 39 repeats row 1."""
    listed = [{"prompt": f"{n} + 1 =", "completion": f" {n + 1}"} for n in range(1, 39)]
    listed += [listed[0], {"prompt": "word " * 300, "completion": "yes"}]
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in listed))
    return path
