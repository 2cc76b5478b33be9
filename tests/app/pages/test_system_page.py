"""The page System: its HTML, and who sees which buttons."""

import os
import re
from importlib.metadata import version

import pytest
from commands import lathe
from environment import use
from machines import GIB, gpu, machine, seen_ago
from played_run import PlayedRun
from sqlalchemy.exc import OperationalError
from sqlmodel import update
from starlette.datastructures import QueryParams
from web import account, client

from app.format.system_text import account_cells, device_names, used_of
from app.pages import system as system_page
from worker import services
from worker.disk import background, usage
from worker.settings import get_settings
from worker.store import accounts, database, machines
from worker.store.tables import Run

SCRIPT = "<img src=x onerror='window.harmed = true'>"


@pytest.fixture
def shown(home, tmp_path, monkeypatch):
    """Returns the HTML of the page, for the user with these headers."""
    monkeypatch.setattr(usage, "model_caches", lambda: [tmp_path / "models"])
    system_page._services.clear()
    measured()
    yield lambda headers=None, **settings: client(**settings).get("/system", headers=headers).text
    background.disk().wait()


def measured():
    """Measures the disk use again."""
    background.disk().measured(again=True)
    background.disk().wait()


def parts():
    """The parts of the page, as they are sent when they change."""
    return system_page.view.parts(system_page.installation(QueryParams()))


def test_without_a_worker_the_page_says_how_to_start_one(shown):
    text = shown()
    assert "No worker has reported" in text and "lathe worker" in text and "lathe up" in text
    assert "The broker is unreachable." in text and "Start it with" in text


def test_without_a_database_the_page_says_which_since_when_and_what_to_do(home):
    file, away = home / "lathe.db", home / "away.db"
    database.dispose()
    file.rename(away)
    file.mkdir()
    text = client().get("/system").text
    since = re.search(r'<th scope="row">Unreachable since</th><td><time data-ago="([\d.]+)"', text)
    assert since and abs(float(since[1]) - database.failing_since()) < 1
    for told in (
        str(file),
        "SQLite",
        "unable to open database file",
        "Check that its disk has space",
        version("lathe-workbench"),
    ):
        assert told in text, told
    file.rmdir()
    away.rename(file)
    assert "No worker has reported" in client().get("/system").text
    assert database.failing_since() is None


def test_an_unreachable_database_server_is_named_without_its_password(home, monkeypatch):
    use(monkeypatch, DATABASE_URL="postgresql://lathe:geheim@127.0.0.1:1/runs")
    with pytest.raises(OperationalError) as failed, database.read() as session:
        database.now(session=session)
    trouble = services.database_trouble(failed.value)
    assert (
        trouble.address.endswith("127.0.0.1:1/runs") and "refused" in trouble.problem and "geheim" not in str(trouble)
    )
    assert trouble.since == database.failing_since() is not None


def test_only_changed_parts_are_sent(shown):
    machine("node1")
    before = parts()
    assert parts() == before
    machine("node1", load=9.0)
    now = parts()
    assert [name for name in now if now[name] != before[name]] == ["fleet"]


def test_what_a_worker_found_wrong_stands_with_its_machine(shown):
    finding = {"subject": "/dev/shm", "state": "warning", "said": f"64 MiB free {SCRIPT}", "cure": "Use --shm-size=8g."}
    machine("node1", findings=[finding])
    text = shown()
    assert "/dev/shm: 64 MiB free" in text and "Use --shm-size=8g." in text and SCRIPT not in text
    assert "node1: /dev/shm: 64 MiB free" in lathe("system").output


def test_an_engine_shows_its_partitions_and_why_it_does_not_answer(shown):
    pool = {"name": "gpu", "machines": 3, "states": {"idle": 2, "down": 1}, "gpus": 24, "time_limit": "1-00:00:00"}
    capacity = {"engine": "slurm", "pools": [pool | {"is_default": True}], "waiting": 4, "running": 1, "problem": ""}
    with database.write() as session:
        machines.report_engine(session=session, name="slurm", capacity=capacity)
    text = shown()
    assert "Engine Slurm" in text and "1 running, 4 waiting" in text
    assert "gpu (default)" in text and "1 down, 2 idle" in text and "does not answer" not in text
    with database.write() as session:
        machines.report_engine(
            session=session, name="slurm", capacity=capacity | {"pools": [], "problem": "connect failure"}
        )
    assert "Slurm does not answer." in shown()


def test_a_user_who_is_no_admin_gets_no_buttons_for_the_installation(shown):
    machine("node1")
    seen_ago("node1", 100)
    text = shown(account("alice"))
    assert "Last seen" in text and "Remove node1" not in text
    assert "Uploads older than a day" not in text and "Checkpoints of finished runs" in text
    text = shown(account("carol", admin=True))
    assert "Remove node1" in text and "Uploads older than a day" in text


def test_names_of_machines_devices_and_runs_are_escaped(shown):
    machine("node1", overload=SCRIPT, devices=[gpu("node1", 0, label=SCRIPT)])
    PlayedRun(SCRIPT).claim("node1/cuda:0")
    text = shown()
    assert "It starts no runs at present: &lt;img" in text and "<img src=x" not in text


def test_accounts_are_shown_with_what_they_use_and_each_to_itself_only(shown, monkeypatch):
    assert "Accounts" not in shown()
    alice, bob, carol = account("alice"), account("bob"), account("carol", admin=True)
    with database.write() as session:
        accounts.limit(session=session, name="alice", limits={"max_devices": 2, "max_disk_bytes": 10 * GIB})
    run = PlayedRun("mine").claim("node1/cuda:0", "node1/cuda:1")
    with database.write() as session:
        session.exec(update(Run).values(owner="alice"))
    folder = get_settings().runs_dir / run.id
    folder.mkdir(parents=True)
    (folder / "output.log").touch()
    os.truncate(folder / "output.log", GIB)
    assert "0.0 of 10.0 GiB" in shown()  # as it was measured last
    measured()
    for headers in (None, carol, alice, bob):
        text = shown(headers)
        assert "<h2>Accounts</h2>" in text and "2 of 2" in text and "1.0 of 10.0 GiB" in text and ">bob<" in text
    assert (
        'aria-label="alice: Devices" aria-valuenow="100"' in text
        and 'aria-label="alice: Disk" aria-valuenow="10"' in text
    )
    assert "bob: Devices" not in text  # no limit, no bar
    monkeypatch.setenv("LATHE_VISIBILITY", "own")
    get_settings.cache_clear()
    text = shown(alice, visibility="own")
    assert "2 of 2" in text and "<td>bob<" not in text
    text = shown(bob, visibility="own")
    assert "alice" not in text and "<td>bob<" in text
    assert "2 of 2" in shown(carol, visibility="own")


def test_a_lost_machine_names_the_runs_that_it_held(shown):
    machine("node1", devices=[gpu("node1", 0)])
    PlayedRun("mine").claim("node1/cuda:0")
    seen_ago("node1", 200)
    text = shown()
    assert "no contact" in text and "It held <a" in text


def test_a_machine_that_was_put_aside_shows_why_and_only_admins_can_take_it_back(shown):
    with database.write() as session:
        machines.cordon(session=session, host="node2", reason=SCRIPT)
    text = shown()
    assert "node2" in text and "after two failures" in text and "Use again" in text and SCRIPT not in text
    assert "Use again" not in shown(account("alice"))


def test_an_account_s_disk_use_is_missing_before_it_is_measured():
    use = {"devices": 1, "max_devices": None, "waiting": 3, "max_waiting": 1000, "disk_bytes": None}
    assert account_cells(use | {"max_disk_bytes": GIB}) == ["1", "3 of 1,000", "- of 1.0 GiB"]
    assert account_cells(use | {"max_disk_bytes": None}) == ["1", "3 of 1,000", "-"]


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["a/cuda:0"], "GPU 0"),
        (["a/cuda:3", "a/cuda:1", "a/cuda:2"], "GPU 1-3"),
        (["a/cuda:0", "a/cuda:2"], "GPU 0, 2"),
        (["a/cpu"], "CPU"),
    ],
)
def test_the_devices_of_a_run_are_short(names, text):
    assert device_names(names) == text


@pytest.mark.parametrize(
    ("used", "total", "text"),
    [
        (61.2 * GIB, 80 * GIB, "61.2 of 80.0 GiB"),
        (100 * GIB, 1000 * GIB, "100 of 1000 GiB"),
        (None, GIB, "1.0 GiB"),
    ],
)
def test_memory_in_use_has_the_unit_of_the_total(used, total, text):
    assert used_of(used, total) == text
