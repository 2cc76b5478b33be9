"""One `lathe up` for a data folder, and one program for a port."""

import contextlib
import errno
import fcntl
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address

from app.errors import CannotStart
from training.addresses import authority, family, loopback
from worker.settings import Settings

LOCK_FILE = "lathe.lock"


@contextmanager
def only_one(settings: Settings) -> Iterator[Callable[[str], None]]:
    """Locks the data folder for this process; the kernel releases the lock when the process ends.

    Yields a function that stores this process's address, which a second `lathe up` prints.

    Raises:
        CannotStart: another process has locked it.
    """
    with (settings.data_dir / LOCK_FILE).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise _already_running(settings, file.read()) from None
        file.truncate(0)

        def tell(address: str) -> None:
            file.write(json.dumps({"pid": os.getpid(), "address": address}))
            file.flush()

        yield tell


def _already_running(settings: Settings, text: str) -> CannotStart:
    try:
        holder = json.loads(text)
        state = f"is in use: Lathe is already running at {holder['address']} (process {holder['pid']})."
    except (ValueError, KeyError, TypeError):  # it has just started
        state = "is in use: Lathe is already starting."
    fix = "Stop it with Ctrl-C, or use another folder and port: LATHE_DATA_DIR=... LATHE_PORT=..."
    return CannotStart("LATHE_DATA_DIR", str(settings.data_dir), state, fix)


def free_port(settings: Settings) -> int:
    """The port to listen on: the configured one, or any free one if that is 0.

    Raises:
        CannotStart: another program uses the port, or the address is not usable.
    """
    with socket.socket(family(settings.host), socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            raise _refused(settings, error) from None
        return int(probe.getsockname()[1])


def _refused(settings: Settings, error: OSError) -> CannotStart:
    port = settings.port
    if error.errno == errno.EADDRINUSE:
        fix = f"Choose another: LATHE_PORT={port % 65535 + 1}"
        return CannotStart("LATHE_PORT", port, f"is used by another program on {settings.host}.", fix)
    if error.errno == errno.EACCES:
        return CannotStart(
            "LATHE_PORT", port, "needs permissions that you do not have.", "Choose one from 1024 up: LATHE_PORT=7860"
        )
    message = f"cannot be listened on: {error.strerror or error}."
    return CannotStart("LATHE_HOST", settings.host, message, f"Use {loopback()}.")


def address_of(host: str, port: int) -> str:
    """The address to open in a browser on this machine."""
    with contextlib.suppress(ValueError):  # a name
        host = loopback() if ip_address(host).is_unspecified else host
    return f"http://{authority(host, port)}"
