"""Identifies a process across PID reuse, clock changes and reboots.

psutil is imported where it is used: every command would wait for it.
"""

import os
import socket
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

LINUX = sys.platform == "linux"


@dataclass(frozen=True)
class Identity:
    """Identifies a process, also after its end. As text: host:pid:start.

    `start` is boot.namespace.ticks on Linux: ticks since boot do not depend on the clock.
    """

    host: str
    pid: int
    start: str

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.start}"

    @classmethod
    def of(cls, pid: int) -> Self:
        """The process `pid` of this machine. Raises psutil.NoSuchProcess if there is none."""
        return cls(hostname(), pid, f"{_boot_and_namespace()}{_start(pid)}")

    @classmethod
    def parse(cls, text: str | None) -> Self | None:
        """Parses the text form; None if the text is invalid."""
        host, _, rest = (text or "").partition(":")
        pid, _, start = rest.partition(":")
        return cls(host, int(pid), start) if host and pid.isdigit() and start else None

    @property
    def here(self) -> bool:
        """True if it belongs to this host, boot and container."""
        return self.host == hostname() and self.start.startswith(_boot_and_namespace())

    @property
    def alive(self) -> bool:
        """True if it is running; valid only if `here`."""
        import psutil

        try:
            process = psutil.Process(self.pid)
            return Identity.of(self.pid) == self and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def provably_dead(self, *, only_machine: bool) -> bool:
        """True if it has certainly ended. `only_machine`: no other machine uses this database.

        Then an earlier boot proves it too; otherwise another machine may have the same name.
        """
        if self.here:
            return not self.alive
        rebooted = self.start.split(".")[0] != _boot_and_namespace().split(".")[0]
        return only_machine and self.host == hostname() and rebooted


def me() -> Identity:
    """This process."""
    return Identity.of(os.getpid())


@cache
def hostname() -> str:
    """This machine's name, as leases and device names use it; in a job of Slurm that of the node."""
    return (os.environ.get("SLURMD_NODENAME") or socket.gethostname()).replace(":", "-").replace(
        "/", "-"
    ) or "localhost"


@cache
def boot() -> str:
    """Identifies this boot of this machine: processes with the same one share a kernel. Empty if it is unknown."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8] if LINUX else ""


@cache
def _boot_and_namespace() -> str:
    """Boot and pid namespace, each followed by a dot; empty if only the start time is known."""
    if not LINUX:
        return ""
    namespace = "".join(filter(str.isdigit, str(Path("/proc/self/ns/pid").readlink())))
    return f"{boot()}.{namespace}."


def _start(pid: int) -> str:
    import psutil

    if not LINUX:
        return f"{psutil.Process(pid).create_time():.6f}"
    try:
        # The command's name, in brackets, may contain anything; field 22 of the line is the 20th after it.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        raise psutil.NoSuchProcess(pid) from None
    return fields[19]
