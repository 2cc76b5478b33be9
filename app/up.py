"""`lathe up`: everything on this machine, with one command. It starts, watches and stops; the work is done by others."""

import contextlib
import http.client
import signal
import sys
import threading
import time
import webbrowser
from types import FrameType
from urllib.parse import urlsplit

from app import leaving
from app.lock import CannotStart, address_of, free_port, only_one
from app.services import Service, ServiceFailed, python_service
from app.tokens import address_with_token, check_listening
from worker import broker, database, datasets, devices, incoming
from worker.broker import BrokerError
from worker.patience import UNREACHABLE
from worker.settings import Settings, SettingsError
from worker.tasks import worker_command
from worker.units import size

READY_SECONDS = 180.0
_LOOK_SECONDS = 0.5
_STOP_SECONDS = 15.0


def up(settings: Settings, open_browser: bool = False) -> int:
    """Starts database, queue server, worker and web server, and stays until Ctrl-C or SIGTERM stops all of it.

    Returns 0 then, or 1 where it cannot start or a part of it fails again and again, which is said on stderr.
    """
    try:
        settings.make_folders()
        check_listening(settings)
        with only_one(settings) as tell:
            port = free_port(settings)
            tell(address_of(settings.host, port))
            return Everything(settings, port).run(open_browser=open_browser)
    except (CannotStart, BrokerError, SettingsError, ServiceFailed) as error:
        _say(str(error), error=True)
    except UNREACHABLE as error:
        _say(
            f"The database does not answer: {error.orig}. Check LATHE_DATABASE_URL and that its server runs.",
            error=True,
        )
    return 1


class Everything:
    """The queue server, the worker and the web server, from start to stop."""

    def __init__(self, settings: Settings, port: int) -> None:
        self._settings = settings
        self._port = port
        self._address = address_of(settings.host, port)
        self._told = threading.Event()
        self._forced = threading.Event()
        env = {"LATHE_DATA_DIR": str(settings.data_dir), "LATHE_PORT": str(port)}
        logs = settings.data_dir / "logs"
        self._web = python_service("web server", [sys.executable, "-m", "app.main"], logs / "web.log", env)
        self._worker = python_service("worker", worker_command(), logs / "worker.log", env)
        self._services = [self._worker, self._web]
        if not settings.broker_url:
            log = settings.data_dir / "broker" / "server.log"
            self._services.insert(0, Service("queue server", lambda: broker.start(settings), log))

    def run(self, *, open_browser: bool) -> int:
        """Starts all of it, stays until told to stop, and stops it in order."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        try:
            self._start()
        except BaseException:
            self._stop_services()
            raise
        try:
            if not self._told.is_set():
                self._announce()
                if open_browser:
                    webbrowser.open(address_with_token(self._address, self._settings))
            self._stay()
        finally:
            self._stop()
        return 0

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """Ctrl-C: once to stop, twice not to wait for anything."""
        (self._forced if self._told.is_set() else self._told).set()

    def _start(self) -> None:
        _say("Starting Lathe ...")
        devices.machine()  # a wrong LATHE_DEVICES is said here, and not in the worker's log
        database.migrate()
        incoming.remove_leftovers()
        datasets.clear_tokens()
        for service in self._services:
            service.start()
        deadline = time.monotonic() + READY_SECONDS
        while not self._told.is_set() and not self._answers():
            if time.monotonic() > deadline:
                raise ServiceFailed(self._web.explain(f"The web server does not answer after {READY_SECONDS:.0f} s."))
            for service in self._services:
                code = service.ended()
                if code is not None:
                    raise ServiceFailed(service.explain(f"The {service.name} does not start (exit code {code})."))
            self._told.wait(0.1)

    def _answers(self) -> bool:
        place = urlsplit(self._address)
        with contextlib.closing(http.client.HTTPConnection(place.hostname or "", place.port, timeout=2)) as connection:
            try:
                connection.request("GET", "/healthz")
                return connection.getresponse().status == http.client.OK
            except (OSError, http.client.HTTPException):
                return False

    def _announce(self) -> None:
        settings = self._settings
        _say(f"Lathe runs at {self._address}")
        signing_in = "with LATHE_TOKEN" if settings.token else address_with_token(self._address, settings)
        _say(f"  sign in    {signing_in} (not needed on this machine)")
        _say(f"  trains on  {_hardware()}")
        _say(f"  queue      {'LATHE_BROKER_URL' if settings.broker_url else 'embedded Valkey'}")
        _say(f"  database   {'LATHE_DATABASE_URL' if settings.database_url else 'embedded SQLite'}")
        _say(f"  data       {settings.data_dir}, logs in logs/")
        _say("Ctrl-C stops it; runs in progress are saved and go on at the next start.")

    def _stay(self) -> None:
        while not self._told.wait(_LOOK_SECONDS):
            for service in self._services:
                if service.keep_running():
                    _say(
                        f"The {service.name} ended by itself and was started again. Its log: {service.log}", error=True
                    )

    def _stop(self) -> None:
        self._told.set()
        self._say_what_happens()
        # The worker ends first: it would take back what is given up.
        self._worker.stop(_STOP_SECONDS)
        saved = leaving.give_back(_say, self._forced)
        self._stop_services()
        _say("Lathe has stopped." if saved else "Lathe was stopped by force.")

    def _stop_services(self) -> None:
        for service in reversed(self._services):
            service.stop(_STOP_SECONDS)

    def _say_what_happens(self) -> None:
        try:
            running = leaving.in_progress()
        except UNREACHABLE:
            running = []
        _say("Stopping Lathe ...")
        if running:
            _say("In progress, to be saved, queued again and resumed at the next start:")
            for run in running:
                _say(leaving.describe(run))
            _say("Ctrl-C again does not wait for that: they then go on from their last checkpoint.")


def _hardware() -> str:
    machine = devices.machine()
    if machine.kind == "cpu":
        return "this machine's CPU"
    memory = size(min(machine.memory_bytes))
    return (
        f"{machine.devices} x {machine.names[0]} ({memory})"
        if machine.devices > 1
        else f"{machine.names[0]} ({memory})"
    )


def _say(line: str, *, error: bool = False) -> None:
    # A terminal that was closed must not keep the runs from being saved.
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr if error else sys.stdout, flush=True)
