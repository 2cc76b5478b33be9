"""`lathe up`: one command that starts everything, keeps it running and stops it without losing a run."""

import contextlib
import http.client
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from commands import lathe
from paths import ROOT
from patience import eventually
from programs.stand_in_nursery import Forked
from sqlalchemy import text
from supervised import ENDLESS, get, living, nursery, queue_run

from app.errors import CannotStart
from app.local import services
from app.local import up as local
from app.local.lock import address_of, free_port, only_one
from app.local.services import ServiceFailed, python_service
from worker import celery_app
from worker.machine import processes
from worker.settings import Settings, get_settings
from worker.store import database, runs
from worker.store.tables import Status


@dataclass
class Started:
    """A running `lathe up` and its output so far."""

    process: Forked
    output: Path

    def said(self, text: str) -> str:
        """Waits until the output contains `text`, and returns all output."""

        def found() -> bool:
            has_ended = self.process.poll() is not None
            printed = self.output.read_text()
            assert text in printed or not has_ended, printed
            return text in printed

        eventually(found)
        return self.output.read_text()

    def exit_code(self) -> int:
        """Waits for the end."""
        return int(self.said("exit code ").rpartition("exit code ")[2])

    def address(self) -> str:
        return next(line.split()[-1] for line in self.said("Lathe is running at").splitlines() if "running at" in line)

    def services(self) -> dict[str, psutil.Process]:
        kinds = {"stand_in_worker": "worker", "app.server": "web", "serve": "web", "unixsocket": "queue"}
        result = {}
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.Error):
                words = child.cmdline()
                result |= {kind: child for word, kind in kinds.items() if any(word in part for part in words)}
        return result

    def interrupt(self) -> None:
        self.process.process.send_signal(signal.SIGINT)


@contextlib.contextmanager
def up(*flags: str) -> Iterator[Started]:
    output = get_settings().data_dir / f"up{time.monotonic_ns()}.txt"
    output.touch()
    env = os.environ | {"LATHE_PORT": "0", "PYTHONPATH": str(ROOT)}
    started = nursery().fork("up", flags, output, env=env)
    try:
        yield Started(started, output)
    finally:
        started.end()


@pytest.mark.slow
def test_a_run_in_progress_is_saved_at_ctrl_c_and_resumed_at_the_next_start(home: Path) -> None:
    with up("--light") as first:
        address = first.address()
        host, port = address.removeprefix("http://").split(":")
        with contextlib.closing(http.client.HTTPConnection(host, int(port))) as connection:
            connection.request("GET", "/healthz")
            assert connection.getresponse().status == 200
        celery_app.notify(run_id := queue_run(**ENDLESS))
        eventually(lambda: get(run_id).step > 2)
        services = first.services()
        assert set(services) == {"worker", "web", "queue"}
        first.interrupt()
        assert first.exit_code() == 0
        output = first.said("Lathe has stopped.")
    assert f"{run_id}  a run, step" in output
    assert f"{run_id}  saved and requeued at step" in output
    assert get(run_id).status is Status.QUEUED
    assert living(run_id) == []
    assert all(processes.is_gone(service) for service in services.values())
    with up("--light") as second:
        eventually(lambda: get(run_id).attempt == 2 and get(run_id).status is Status.RUNNING)
        services = second.services()
        second.process.process.kill()
        eventually(lambda: all(processes.is_gone(service) for service in services.values()))
    assert living(run_id), "the training goes on under its supervisor"
    with database.write() as session:
        runs.request_stop(session=session, run_id=run_id)
    eventually(lambda: get(run_id).status is Status.STOPPED and not living(run_id), every=0.1)


@pytest.mark.slow
def test_a_second_start_is_refused_a_killed_service_restarts_and_a_second_ctrl_c_exits_at_once(home: Path) -> None:
    with up("--light") as started:
        address = started.address()
        with up("--light") as late:
            assert late.exit_code() == 1
            assert f"already running at {address} (process {started.process.pid})" in late.output.read_text()
        before = started.services()
        before["worker"].kill()
        before["queue"].kill()
        eventually(
            lambda: len(now := started.services()) == 3 and not set(now.values()) & {before["worker"], before["queue"]}
        )
        celery_app.notify(run_id := queue_run(**ENDLESS, deaf=True))
        eventually(lambda: get(run_id).step > 2)
        started.interrupt()
        started.said("Ctrl-C again")
        started.interrupt()
        assert started.exit_code() == 0
        assert f"{run_id}  killed" in started.said("some runs were killed")
    assert living(run_id) == []


def test_a_used_port_is_reported_with_the_variable_to_change(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("LATHE_PORT", str(port := taken.getsockname()[1]))
        with pytest.raises(
            CannotStart, match=rf"{port}.*is used by another program on 127\.0\.0\.1.*LATHE_PORT={port + 1}"
        ):
            free_port(Settings())


def test_a_database_of_a_newer_version_is_refused_by_up_and_by_commands(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with database.write() as session:
        session.exec(text("UPDATE alembic_version SET version_num = '9999'"))
    database.dispose()
    assert local.up(get_settings()) == 1
    assert "database (given: '9999'): was changed by a newer version of Lathe" in capsys.readouterr().err
    for arguments in (
        ["runs"],
        ["system"],
        ["user", "add", "alice"],
        ["worker"],
        ["run", "--model", "m", "--data", "d"],
    ):
        result = lathe(*arguments)
        assert (result.exit_code, "newer version of Lathe" in result.stderr) == (1, True), arguments


def test_an_address_of_another_machine_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATHE_HOST", "192.0.2.1")
    with pytest.raises(CannotStart, match=r"LATHE_HOST .given: '192\.0\.2\.1'"):
        free_port(Settings())


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "http://127.0.0.1:1"),
        ("0.0.0.0", "http://127.0.0.1:1"),
        ("::1", "http://[::1]:1"),
        ("box", "http://box:1"),
    ],
)
def test_the_printed_address_opens_in_a_browser(host: str, address: str) -> None:
    assert address_of(host, 1) == address


SLOW_SERVER = """
import os, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
while time.process_time() < 1.0:
    pass
class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
HTTPServer(("127.0.0.1", int(os.environ["LATHE_PORT"])), Answer).serve_forever()
"""


@pytest.mark.parametrize(("program", "answers"), [(SLOW_SERVER, True), ("import time; time.sleep(600)", False)])
def test_a_web_server_that_starts_slowly_is_waited_for_and_one_that_does_nothing_is_not(
    home: Path, monkeypatch: pytest.MonkeyPatch, program: str, answers: bool
) -> None:
    monkeypatch.setattr(local, "QUIET_SECONDS", 0.5)
    settings = get_settings()
    port = free_port(settings.model_copy(update={"port": 0}))
    everything = local.Everything(settings, port)
    env = {"LATHE_PORT": str(port)}
    web = python_service("web server", [sys.executable, "-S", "-c", program], home / "logs" / "web.log", env)
    everything._web, everything._services = web, [web]
    try:
        with contextlib.nullcontext() if answers else pytest.raises(ServiceFailed, match="and does nothing"):
            everything._start()
    finally:
        web.stop(0)


def test_the_data_folder_is_released_when_its_process_ends(home: Path) -> None:
    for _ in range(2):
        with only_one(get_settings()) as tell:
            tell("http://here")
            assert json.loads((home / "lathe.lock").read_text())["pid"] == os.getpid()


@pytest.mark.slow
def test_the_log_of_a_service_that_runs_for_long_does_not_grow_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "_LOG_BYTES", 1000)
    log = tmp_path / "logs" / "one.log"
    talk = "import sys\nfor line in sys.stdin: print('x' * 600, line, flush=True)"
    reads, writes = os.pipe()
    service = services.Service(
        "one",
        lambda: processes.start_child([sys.executable, "-c", talk], output=log, cwd=tmp_path, stdin=reads),
        log,
    )
    log.parent.mkdir()
    service.start()
    try:
        for number in range(6):
            os.write(writes, f"{number}\n".encode())
            written = eventually(lambda number=number: f" {number}\n" in log.read_text())
            assert written and not service.keep_running()
        old = log.with_suffix(".old.log").read_text()
        assert log.stat().st_size < 1000 and old.count("x" * 600) == 2 and " 5\n" in old
    finally:
        service.stop(5)
        os.close(reads)
        os.close(writes)


def test_a_service_that_keeps_ending_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "raise SystemExit('it cannot work')"]
    service = python_service("web server", argv, tmp_path / "web.log", {})
    service.start()

    def fails() -> None:
        while True:
            service.keep_running()
            time.sleep(0.01)

    with pytest.raises(ServiceFailed, match=r"(?s)The web server ended 6 times in 10 minutes.*it cannot work"):
        fails()
