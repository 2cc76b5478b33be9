"""Workers report their machine from their own loop."""

from collections import namedtuple

import psutil
import pytest
from patience import eventually
from sqlmodel import select
from supervised import started  # noqa: F401

from worker.doctor import host_checks
from worker.machine import measurement
from worker.machine.devices import CPU
from worker.machine.process_identity import hostname, me
from worker.queue import reaper
from worker.settings import get_settings
from worker.store import database as db
from worker.store.tables import Machine


def reported() -> list[Machine]:
    with db.read() as session:
        return list(session.exec(select(Machine)))


@pytest.fixture(autouse=True)
def on_cpu(home: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATHE_DEVICES", CPU)
    get_settings.cache_clear()


def test_a_report_has_the_devices_memory_load_and_disk_of_this_machine() -> None:
    reaper.report([])
    (machine,) = reported()
    assert (machine.name, machine.host, machine.worker) == (f"{hostname()} (cpu)", hostname(), str(me()))
    assert machine.memory_bytes == psutil.virtual_memory().total > machine.memory_used_bytes > 0
    assert machine.disk_bytes > machine.disk_free_bytes > 0
    assert [device["name"] for device in machine.devices] == [f"{hostname()}/cpu"]
    assert machine.versions["lathe-workbench"] == measurement.versions()["lathe-workbench"]
    assert (machine.draining, machine.overload) == (False, "")


def test_an_overloaded_machine_reports_the_reason() -> None:
    folder = get_settings().data_dir / "overloaded"
    folder.mkdir()
    (folder / hostname()).write_text("load average of 30 per core")
    reaper.report([])
    assert [machine.overload for machine in reported()] == ["load average of 30 per core"]


@pytest.mark.slow
@pytest.mark.usefixtures("started")
def test_a_worker_reports_while_it_runs_and_that_it_stops() -> None:
    rounds = reaper.Reaper()
    rounds.start()
    try:
        (machine,) = eventually(reported)
        assert not machine.draining
    finally:
        rounds.stop()
        rounds.join()
    (machine,) = reported()
    assert machine.draining


@pytest.mark.slow
@pytest.mark.usefixtures("started")
def test_runs_are_started_although_the_report_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("no NVML today")

    rounds_done: list[int] = []
    monkeypatch.setattr(reaper, "report", fail)
    monkeypatch.setattr(reaper, "ROUND_SECONDS", 0.01)
    monkeypatch.setattr(reaper, "local_round", lambda: rounds_done.append(1))
    rounds = reaper.Reaper()
    rounds.start()
    try:
        eventually(lambda: len(rounds_done) > 2)
    finally:
        rounds.stop()
        rounds.join()


def test_a_worker_reports_what_was_wrong_when_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    small = namedtuple("Room", ["total", "used", "free"])(64 * 2**20, 0, 64 * 2**20)
    measured = host_checks.shutil.disk_usage
    monkeypatch.setattr(host_checks.shutil, "disk_usage", lambda path: small if path == "/dev/shm" else measured(path))
    reaper.Reporter().report_if_due()
    (machine,) = reported()
    (finding,) = [finding for finding in machine.findings if finding["subject"] == "/dev/shm"]
    assert finding["state"] == "warning" and "64.0 MiB" in finding["said"] and "--shm-size" in finding["cure"]
