"""A PostgreSQL server for tests, which can be stopped and frozen."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import psutil
from patience import eventually

from worker.machine import processes


def programs() -> Path | None:
    """The folder of initdb and postgres, or None if PostgreSQL's server is not installed."""
    on_path = shutil.which("initdb")
    folders = [Path(on_path).parent] if on_path else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return next((folder for folder in reversed(folders) if (folder / "initdb").exists()), None)


PORT = 5499  # on an address and in a folder of its own


class Cluster:
    """A server in its own folder, with a Unix socket there. With `address` it also listens on that one, in `namespace`."""

    def __init__(self, bin_folder: Path, address: str = "", namespace: str = "") -> None:
        self._bin, self._address, self._namespace = bin_folder, address, namespace
        # Not in pytest's folder: the server refuses to run as root, and other users cannot read that folder.
        self._folder = Path(tempfile.mkdtemp(prefix="lathe-pg-"))
        self._user = "postgres" if os.getuid() == 0 else None
        if self._user:
            shutil.chown(self._folder, self._user)
        self._server: subprocess.Popen[bytes] | None = None
        made = ["-D", str(self._data), "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale", "C"]
        self._run("initdb", *made)
        if address:
            with (self._data / "pg_hba.conf").open("a") as file:
                file.write(f"host all all {address}/24 trust\n")
        self.start()

    @property
    def url(self) -> str:
        """The server at its Unix socket."""
        return f"postgresql://postgres@/postgres?host={self._folder}&port={PORT}"

    @property
    def network_url(self) -> str:
        """The server at its address in the network namespace."""
        return f"postgresql://postgres@/postgres?host={self._address}&port={PORT}"

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def start(self) -> None:
        """Starts the server and waits until it answers."""
        flags = [
            f"-c listen_addresses={self._address}",
            f"-c port={PORT}",
            f"-c unix_socket_directories={self._folder}",
            "-c fsync=off",
        ]
        self._run(
            "pg_ctl", "start", "-w", "-D", str(self._data), "-l", str(self._folder / "log"), "-o", " ".join(flags)
        )

    def stop(self) -> None:
        """Ends the server and its connections at once."""
        server = self._processes()[0]
        self._run("pg_ctl", "stop", "-m", "fast", "-W", "-D", str(self._data))
        eventually(lambda: processes.is_gone(server))
        with contextlib.suppress(ChildProcessError):  # as a subreaper, this process is its parent
            os.waitpid(server.pid, 0)

    def freeze(self) -> None:
        """Freezes the server: it does not answer, but its connections stay open."""
        processes.send(self._processes(), signal.SIGSTOP)

    def thaw(self) -> None:
        processes.send(self._processes(), signal.SIGCONT)

    def remove(self) -> None:
        """Ends the server and deletes its folder."""
        if (self._data / "postmaster.pid").exists():
            self.thaw()
            self.stop()
        shutil.rmtree(self._folder)

    def _processes(self) -> list[psutil.Process]:
        server = psutil.Process(int((self._data / "postmaster.pid").read_text().splitlines()[0]))
        return [server, *server.children(recursive=True)]

    def _run(self, program: str, *arguments: str) -> None:
        argv, user, output = [str(self._bin / program), *arguments], self._user, subprocess.DEVNULL
        if self._namespace:  # only root may enter one
            argv = ["ip", "netns", "exec", self._namespace, "runuser", "-u", self._user or "root", "--", *argv]
            user = None
        subprocess.run(argv, check=True, user=user, cwd=self._folder, stdout=output, stderr=output)
