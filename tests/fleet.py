"""Hosts for tests: network namespaces with host names and process trees of their own, which run workers."""

import os
import shutil
import signal
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from paths import ROOT
from patience import eventually

from training.run_folder.paths import RUN_VARIABLE
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
    switch: str
    cable: str
    worker: "subprocess.Popen[bytes] | None" = field(default=None)

    def start(self) -> None:
        """Starts the worker; everything it starts lives in a process tree that `kill` ends."""
        code = "from worker.queue.reaper import Reaper; r = Reaper(); r.start(); r.join()"
        inner = f'hostname {self.name}; exec "$0" -c "$1"'
        argv = ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "--pid", "--fork", "--mount-proc"]
        argv += ["--kill-child", "sh", "-c", inner, sys.executable, code]
        with self.log.open("ab") as output:
            self.worker = subprocess.Popen(argv, env=self.environment, cwd=ROOT, stdout=output, stderr=output)

    def ranks(self) -> list[psutil.Process]:
        """The launcher and ranks of runs that are on this host."""
        below = processes.descendants(self.worker.pid) if self.worker else []
        return [one for one in below if _trains(one)]

    def plug(self, *, in_: bool) -> None:
        """Connects the host to the switch, or disconnects it: no packet arrives, and no connection is told."""
        _ip("-n", self.switch, "link", "set", self.cable, "up" if in_ else "down")

    def kill(self) -> None:
        """Ends the host as a loss of power does: every process on it is killed at once."""
        if self.worker is not None:
            for child in processes.descendants(self.worker.pid):
                processes.send([child], signal.SIGKILL)
            self.worker.kill()
            self.worker.wait()
            self.worker = None


class Network:
    """Hosts at a switch with an `address` of its own, for a server that all reach; `remove` ends them.

    The switch is in a namespace too: Chromium drops all requests under way when an address of the machine changes, and tests of
    pages run at the same time.
    """

    def __init__(self) -> None:
        self._tag = uuid.uuid4().hex[:6]
        self.namespace = f"lathe-{self._tag}-switch"
        self.hosts: list[Host] = []
        self._subnet = f"10.203.{os.getpid() % 250}"
        self.address = f"{self._subnet}.254"
        _ip("netns", "add", self.namespace)
        self._at_switch("link", "add", "switch", "type", "bridge")
        self._at_switch("addr", "add", f"{self.address}/24", "dev", "switch")
        for device in ("switch", "lo"):
            self._at_switch("link", "set", device, "up")

    def add(self, name: str, folder: Path, environment: dict[str, str]) -> None:
        """Adds a host."""
        number = len(self.hosts) + 1
        address, namespace = f"{self._subnet}.{number}", f"lathe-{self._tag}-{name}"
        host = Host(
            name,
            address,
            namespace,
            environment | {"LATHE_ADDRESS": address},
            folder / f"{name}.log",
            self.namespace,
            name,
        )
        _ip("netns", "add", namespace)
        self._at_switch("link", "add", host.cable, "type", "veth", "peer", "name", "cable", "netns", namespace)
        self._at_switch("link", "set", host.cable, "master", "switch")
        _ip("-n", namespace, "addr", "add", f"{address}/24", "dev", "cable")
        for device in ("cable", "lo"):
            _ip("-n", namespace, "link", "set", device, "up")
        host.plug(in_=True)
        self.hosts.append(host)

    def _at_switch(self, *arguments: str) -> None:
        _ip("-n", self.namespace, *arguments)

    def remove(self) -> None:
        """Kills all hosts and deletes their networks."""
        for host in self.hosts:
            host.kill()
        for namespace in (*(host.namespace for host in self.hosts), self.namespace):
            eventually(lambda name=namespace: _ip("netns", "delete", name, check=False))  # after its last process


def _trains(process: psutil.Process) -> bool:
    try:
        return not processes.is_gone(process) and RUN_VARIABLE in process.environ()
    except psutil.Error:  # it ended meanwhile
        return False


def _ip(*arguments: str, check: bool = True) -> bool:
    return subprocess.run(["ip", *arguments], check=check, capture_output=True).returncode == 0
