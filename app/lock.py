"""One `lathe up` for a data folder, and one program for a port."""

import errno
import fcntl
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address

from worker.settings import Settings

LOCK_FILE = "lathe.lock"


class CannotStart(RuntimeError):  # noqa: N818
    """Lathe cannot start here; the message says why and what to do."""


@contextmanager
def only_one(settings: Settings) -> Iterator[Callable[[str], None]]:
    """Holds the data folder for this process; the kernel lets go of it however the process ends.

    Yields a function that tells others, who come too late, at which address to look.

    Raises:
        CannotStart: another process holds it.
    """
    with (settings.data_dir / LOCK_FILE).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise CannotStart(_already(settings, file.read())) from None
        file.truncate(0)

        def tell(address: str) -> None:
            file.write(json.dumps({"pid": os.getpid(), "address": address}))
            file.flush()

        yield tell


def _already(settings: Settings, text: str) -> str:
    try:
        holder = json.loads(text)
        told = f"Lathe is already running at {holder['address']} (process {holder['pid']})"
    except (ValueError, KeyError, TypeError):  # it has this moment begun
        told = "Lathe is already starting"
    return (
        f"{told}, with the data folder {settings.data_dir}. "
        "Stop it there with Ctrl-C, or give this one another folder and port: LATHE_DATA_DIR=... LATHE_PORT=..."
    )


def free_port(settings: Settings) -> int:
    """The port to listen on: the one of the settings, or any free one where that is 0.

    Raises:
        CannotStart: another program listens there, or the address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            raise CannotStart(_refused(settings, error)) from None
        return int(probe.getsockname()[1])


def _refused(settings: Settings, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        port = settings.port
        return f"Port {port} of {settings.host} is in use by another program. Choose another: LATHE_PORT={port % 65535 + 1}"
    if error.errno == errno.EACCES:
        return f"Port {settings.port} needs more rights than you have. Choose one from 1024 up: LATHE_PORT=7860"
    return f"LATHE_HOST (given: {settings.host!r}) cannot be listened on: {error.strerror or error}. Use 127.0.0.1."


def address_of(host: str, port: int) -> str:
    """The address to open in a browser on this machine."""
    try:
        found = ip_address(host)
    except ValueError:
        return f"http://{host}:{port}"
    if found.is_unspecified:
        return f"http://127.0.0.1:{port}"
    return f"http://[{host}]:{port}" if found.version == 6 else f"http://{host}:{port}"
