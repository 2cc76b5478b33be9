"""`lathe up`: starts, monitors and stops the queue server, the worker and the web server on this machine."""

import contextlib
import http.client
import signal
import sys
import threading
import time
import webbrowser
from types import FrameType
from urllib.parse import urlsplit

from app.access.server_token import address_with_token, check_listening
from app.errors import storage_problem
from app.local import leaving
from app.local.lock import address_of, free_port, only_one
from app.local.services import Service, ServiceFailed, python_service
from training.errors import UserError
from training.units import byte_size
from worker.datasets import datasets, incoming
from worker.machine import devices
from worker.queue import local_broker
from worker.queue.local_broker import BrokerError
from worker.queue.tasks import worker_command
from worker.settings import Settings, name_unknown_variables
from worker.store import database
from worker.store.database import UNREACHABLE

QUIET_SECONDS = 180.0
"""A web server that neither answers nor does anything for so long is stuck; on a busy machine it may take any time to start."""
_POLL_SECONDS = 0.5
_STOP_SECONDS = 15.0


def up(settings: Settings, open_browser: bool = False) -> int:
    """Runs the database, queue server, worker and web server until Ctrl-C or SIGTERM.

    Returns 0, or 1 with a message on stderr if it cannot start or a service fails repeatedly.
    """
    name_unknown_variables()
    try:
        settings.make_folders()
        check_listening(settings)
        with only_one(settings) as tell:
            port = free_port(settings)
            tell(address_of(settings.host, port))
            return Everything(settings, port).run(open_browser=open_browser)
    except (UserError, BrokerError, ServiceFailed) as error:
        _say(str(error), error=True)
    except UNREACHABLE as error:
        _say(str(storage_problem(error)), error=True)
    return 1


class Everything:
    """The queue server, the worker and the web server, from start to stop."""

    def __init__(self, settings: Settings, port: int) -> None:
        self._settings = settings
        self._port = port
        self._address = address_of(settings.host, port)
        self._stopping = threading.Event()
        self._forced = threading.Event()
        env = {"LATHE_DATA_DIR": str(settings.data_dir), "LATHE_PORT": str(port)}
        logs = settings.data_dir / "logs"
        self._web = python_service("web server", [sys.executable, "-m", "app.server"], logs / "web.log", env)
        self._worker = python_service("worker", worker_command(), logs / "worker.log", env)
        self._services = [self._worker, self._web]
        if not settings.broker_url:
            log = settings.data_dir / "broker" / "server.log"
            self._services.insert(0, Service("queue server", lambda: local_broker.start(settings), log))

    def run(self, *, open_browser: bool) -> int:
        """Starts all services, waits for a signal, and stops them in order."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        try:
            self._start()
        except BaseException:
            self._stop_services()
            raise
        try:
            if not self._stopping.is_set():
                self._announce()
                if open_browser:
                    webbrowser.open(address_with_token(self._address, self._settings))
            self._monitor()
        finally:
            self._stop()
        return 0

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """Stops on the first signal; stops waiting on the second."""
        (self._forced if self._stopping.is_set() else self._stopping).set()

    def _start(self) -> None:
        _say("Starting Lathe ...")
        devices.machine()  # reports an invalid LATHE_DEVICES here, not in the worker's log
        database.migrate()
        incoming.remove_leftovers()
        datasets.clear_tokens()
        for service in self._services:
            service.start()
        began, activity = time.monotonic(), self._web.activity()
        while not self._stopping.is_set() and not self._answers():
            if activity.quiet_seconds() > QUIET_SECONDS:
                message = f"The web server does not answer after {time.monotonic() - began:.0f} s, and does nothing."
                raise ServiceFailed(self._web.explain(message))
            for service in self._services:
                code = service.ended()
                if code is not None:
                    raise ServiceFailed(service.explain(f"The {service.name} does not start (exit code {code})."))
            self._stopping.wait(0.1)

    def _answers(self) -> bool:
        address = urlsplit(self._address)
        with contextlib.closing(
            http.client.HTTPConnection(address.hostname or "", address.port, timeout=2)
        ) as connection:
            try:
                connection.request("GET", "/healthz")
                return connection.getresponse().status == http.client.OK
            except (OSError, http.client.HTTPException):
                return False

    def _announce(self) -> None:
        settings = self._settings
        _say(f"Lathe is running at {self._address}")
        signing_in = "with LATHE_TOKEN" if settings.token else address_with_token(self._address, settings)
        _say(f"  sign in    {signing_in} (not needed on this machine)")
        _say(f"  trains on  {_hardware()}")
        _say(f"  queue      {'LATHE_BROKER_URL' if settings.broker_url else 'embedded Valkey'}")
        _say(f"  database   {'LATHE_DATABASE_URL' if settings.database_url else 'embedded SQLite'}")
        _say(f"  data       {settings.data_dir}, logs in logs/")
        _say("Press Ctrl-C to stop. Running runs save a checkpoint and continue at the next start.")

    def _monitor(self) -> None:
        while not self._stopping.wait(_POLL_SECONDS):
            for service in self._services:
                if service.keep_running():
                    _say(f"The {service.name} ended unexpectedly and was restarted. Log: {service.log}", error=True)

    def _stop(self) -> None:
        self._stopping.set()
        self._announce_stop()
        # The worker ends first: otherwise it would claim the requeued runs.
        self._worker.stop(_STOP_SECONDS)
        saved = leaving.requeue_running_runs(_say, self._forced)
        self._stop_services()
        _say("Lathe has stopped." if saved else "Lathe has stopped; some runs were killed.")

    def _stop_services(self) -> None:
        for service in reversed(self._services):
            service.stop(_STOP_SECONDS)

    def _announce_stop(self) -> None:
        try:
            running = leaving.in_progress()
        except UNREACHABLE:
            running = []
        _say("Stopping Lathe ...")
        if running:
            _say("Saving and requeuing running runs, which continue at the next start:")
            for run in running:
                _say(leaving.describe(run))
            _say("Press Ctrl-C again to stop now; they then continue from their last checkpoint.")


def _hardware() -> str:
    """The devices that runs use, and what is wrong with others."""
    if problem := devices.problem():
        return f"nothing: {problem}"
    machine = devices.machine()
    if machine.kind == "cpu":
        return "this machine's CPU"
    several = f"{machine.devices} x " if machine.devices > 1 else ""
    faulty = [f"; GPU {gpu.number} is left out: {gpu.problem}" for gpu in devices.chosen_gpus() if gpu.problem]
    return f"{several}{machine.names[0]} ({byte_size(min(machine.memory_bytes))}){''.join(faulty)}"


def _say(line: str, *, error: bool = False) -> None:
    # A closed terminal must not prevent the runs from saving.
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr if error else sys.stdout, flush=True)
