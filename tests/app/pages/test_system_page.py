"""The parts of the page System, and who sees which buttons."""

import os
from types import SimpleNamespace

import pytest
from commands import lathe
from machines import GIB, gpu, machine, seen_ago
from played_run import PlayedRun
from sqlmodel import update

from app.access import callers
from app.access.callers import Caller
from app.pages.system import page as system_page
from app.pages.system.machines_html import machines_html
from app.words.system import account_cells, device_names, used_of
from worker.disk import background, usage
from worker.settings import get_settings
from worker.store import accounts, database
from worker.store.system import aside, engines
from worker.store.tables import Run

SCRIPT = "<img src=x onerror='window.harmed = true'>"


@pytest.fixture
def shown(home, tmp_path, monkeypatch):
    """Returns the parts of the page for a caller."""
    monkeypatch.setattr(usage, "model_caches", lambda: [tmp_path / "models"])
    background.disk().measured()
    background.disk().wait()

    def parts(caller=Caller()):  # noqa: B008
        system_page._fleets.clear()
        callers.begin(caller)
        return system_page._parts()

    yield parts
    callers.begin(Caller())
    background.disk().wait()


def test_only_changed_parts_are_sent(shown, monkeypatch):
    monkeypatch.setattr(system_page, "_SERVICES_SECONDS", 1000)
    machine("node1")
    shown()
    request = SimpleNamespace(session_hash="one")
    assert all(isinstance(part, str) for part in system_page.opened(request))
    assert not any(isinstance(part, str) for part in system_page.refreshed(request))
    system_page._fleets.clear()
    machine("node1", load=9.0)
    sent = [isinstance(part, str) for part in system_page.refreshed(request)]
    assert sent == [False, True, False, False]


def test_what_a_worker_found_wrong_stands_with_its_machine(shown):
    finding = {"subject": "/dev/shm", "state": "warning", "said": f"64 MiB free {SCRIPT}", "cure": "Use --shm-size=8g."}
    machine("node1", findings=[finding])
    part = shown()[1]
    assert "/dev/shm: 64 MiB free" in part and "Use --shm-size=8g." in part and SCRIPT not in part
    assert "node1: /dev/shm: 64 MiB free" in lathe("system").output


def test_an_engine_shows_its_partitions_and_why_it_does_not_answer(shown):
    pool = {"name": "gpu", "machines": 3, "states": {"idle": 2, "down": 1}, "gpus": 24, "time_limit": "1-00:00:00"}
    capacity = {"engine": "slurm", "pools": [pool | {"is_default": True}], "waiting": 4, "running": 1, "problem": ""}
    with database.write() as session:
        engines.report(session=session, name="slurm", capacity=capacity)
    part = shown()[1]
    assert "Engine Slurm" in part and "1 running, 4 waiting" in part
    assert "gpu (default)" in part and "1 down, 2 idle" in part and "does not answer" not in part
    with database.write() as session:
        engines.report(session=session, name="slurm", capacity=capacity | {"pools": [], "problem": "connect failure"})
    assert "Slurm does not answer." in shown()[1]


def test_a_user_who_is_no_admin_gets_no_buttons_for_the_installation(shown):
    machine("node1")
    seen_ago("node1", 100)
    _, machines, _, disk = shown(Caller("alice"))
    assert "Last seen" in machines
    assert "Remove" not in machines
    assert "Uploads older than a day" not in disk
    assert "Checkpoints of finished runs" in disk
    _, machines, _, disk = shown(Caller("carol", admin=True))
    assert "Remove" in machines
    assert "Uploads older than a day" in disk


def test_names_of_machines_devices_and_runs_are_escaped(home):
    machine("node1", overload=SCRIPT, devices=[gpu("node1", 0, label=SCRIPT)])
    PlayedRun(SCRIPT).claim("node1/cuda:0")
    with database.read() as session:
        html = machines_html(system_page.system.fleet(session), admin=True)
    assert "<img" not in html


def test_accounts_are_shown_with_what_they_use_and_each_to_itself_only(shown, monkeypatch):
    assert "Accounts" not in shown()[1]
    with database.write() as session:
        accounts.add(session=session, name="alice", limits={"max_devices": 2, "max_disk_bytes": 10 * GIB})
        accounts.add(session=session, name="bob")
    run = PlayedRun("mine").claim("node1/cuda:0", "node1/cuda:1")
    with database.write() as session:
        session.exec(update(Run).values(owner="alice"))
    folder = get_settings().runs_dir / run.id
    folder.mkdir(parents=True)
    (folder / "output.log").touch()
    os.truncate(folder / "output.log", GIB)
    assert "0.0 of 10.0 GiB" in shown()[1]  # as it was measured last
    background.disk().measured(again=True)
    background.disk().wait()
    for caller in (Caller(), Caller("carol", admin=True), Caller("alice"), Caller("bob")):
        part = shown(caller)[1]
        assert "<h2>Accounts</h2>" in part and "2 of 2" in part and "1.0 of 10.0 GiB" in part and ">bob<" in part
    assert (
        'aria-label="alice: Devices" aria-valuenow="100"' in part
        and 'aria-label="alice: Disk" aria-valuenow="10"' in part
    )
    assert "bob: Devices" not in part  # no limit, no bar
    monkeypatch.setenv("LATHE_VISIBILITY", "own")
    get_settings.cache_clear()
    assert "2 of 2" in shown(Caller("alice"))[1] and ">bob<" not in shown(Caller("alice"))[1]
    assert "alice" not in shown(Caller("bob"))[1] and ">bob<" in shown(Caller("bob"))[1]
    assert "2 of 2" in shown(Caller("carol", admin=True))[1]


def test_a_lost_machine_names_the_runs_that_it_held(home):
    machine("node1", devices=[gpu("node1", 0)])
    PlayedRun("mine").claim("node1/cuda:0")
    seen_ago("node1", 200)
    with database.read() as session:
        html = machines_html(system_page.system.fleet(session), admin=True)
    assert "no contact" in html
    assert "It held <a" in html


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


def test_a_machine_that_was_put_aside_shows_why_and_an_admin_takes_it_back(shown):
    with database.write() as session:
        aside.put_aside(session=session, host="node2", reason=SCRIPT)
    part = shown()[1]
    assert "node2" in part and "after two failures" in part and "Use again" in part and SCRIPT not in part
    assert "Use again" not in shown(Caller("alice"))[1]
    system_page.confirmed({"use": "node2"}, SimpleNamespace(session_hash="two"))
    assert "node2" in shown()[1]  # alice may not
    system_page.confirmed({"use": "node2"}, SimpleNamespace(session_hash="two"))
    assert "node2" not in shown()[1]
