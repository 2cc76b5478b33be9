"""Hosts for tests: network namespaces with host names and process trees of their own, which run workers."""

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from paths import ROOT

from worker.machine import processes


def missing() -> str:
    """Why hosts cannot be made here, or empty."""
    if os.getuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "unshare"):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: iproute2, util-linux)"
    tried = subprocess.run(["unshare", "--net", "--uts", "--pid", "--fork", "true"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "this machine forbids network namespaces"


def inherited() -> dict[str, str]:
    """This process's environment without Lathe's settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LATHE_")}


@dataclass
class Host:
    """A host: its name, its address in the tests' own network, and its worker."""

    name: str
    address: str
    namespace: str
    environment: dict[str, str]
    log: Path
    worker: "subprocess.Popen[bytes] | None" = field(default=None)

    def start(self) -> None:
        """Starts the worker; everything it starts lives in a process tree that `kill` ends."""
        code = "from worker.queue.reaper import Reaper; r = Reaper(); r.start(); r.join()"
        inner = f'hostname {self.name}; exec "$0" -c "$1"'
        argv = ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "--pid", "--fork", "--mount-proc"]
        argv += ["--kill-child", "sh", "-c", inner, sys.executable, code]
        with self.log.open("ab") as output:
            self.worker = subprocess.Popen(argv, env=self.environment, cwd=ROOT, stdout=output, stderr=output)

    def kill(self) -> None:
        """Ends the host as a loss of power does: every process on it is killed at once."""
        if self.worker is not None:
            for child in processes.descendants(self.worker.pid):
                processes.send([child], signal.SIGKILL)
            self.worker.kill()
            self.worker.wait()
            self.worker = None


class Network:
    """Two hosts that reach each other; `remove` ends them."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        tag = uuid.uuid4().hex[:6]
        self.hosts = []
        for number, name in enumerate(("alpha", "beta"), 1):
            address = f"10.203.77.{number}"
            own = environment | {"LATHE_ADDRESS": address}
            self.hosts.append(Host(name, address, f"lathe-{tag}-{name}", own, folder / f"{name}.log"))
        ends = [f"lt{tag}{number}" for number in (1, 2)]
        for host in self.hosts:
            _ip("netns", "add", host.namespace)
        _ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for host, end in zip(self.hosts, ends, strict=True):
            _ip("link", "set", end, "netns", host.namespace)
            _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", end)
            for device in (end, "lo"):
                _ip("-n", host.namespace, "link", "set", device, "up")

    def remove(self) -> None:
        """Kills both hosts and deletes their networks."""
        for host in self.hosts:
            host.kill()
        for host in self.hosts:
            for _ in range(50):  # until its last process has gone
                if _ip("netns", "delete", host.namespace, check=False):
                    break
                time.sleep(0.1)


def _ip(*arguments: str, check: bool = True) -> bool:
    return subprocess.run(["ip", *arguments], check=check, capture_output=True).returncode == 0
