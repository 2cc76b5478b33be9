"""A real Slurm cluster on this machine: a controller and virtual nodes, all processes of this user, on ports of their own.

`python -m benchmarks.slurm_cluster FOLDER` starts one, prints the variable SLURM_CONF that makes the client commands use it, and
ends it on Ctrl-C. It needs Slurm's programs (Debian: slurmctld, slurmd, slurm-client), no root rights, no munge and no network.
"""

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

PROGRAMS = ("slurmctld", "slurmd", "slurmstepd", "srun", "sbatch", "squeue", "scancel", "scontrol", "sinfo")
_START_SECONDS = 120.0
_RESUME_SECONDS = 5.0
KEPT = "kept"
"""The reason of a node's drain that `resume_drained` does not end."""
_CONFIGURATION = """\
ClusterName=lathe
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
AuthInfo=cred_expire={requeue}
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,bf_interval=2,sched_interval=2,sched_min_interval=0
JobRequeue=1
KillWait=20
MinJobAge=300
SlurmctldTimeout=30
SlurmdTimeout={node_timeout}
MessageTimeout=20
ReturnToService=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
{nodes}
PartitionName=batch Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=20
PartitionName=urgent Nodes=ALL Default=NO MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


def missing() -> list[str]:
    """The programs of Slurm that are not installed."""
    return [program for program in PROGRAMS if find(program) is None]


def find(program: str) -> str | None:
    """The path of a program of Slurm; daemons are often outside of PATH."""
    return shutil.which(
        program, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin", "/usr/local/sbin"])
    )


class SlurmCluster:
    """A controller and `count` virtual nodes n1, n2, ... with `cores` CPUs each; also a context manager."""

    def __init__(self, folder: Path, count: int = 2, cores: int = 2, node_timeout: int = 20) -> None:
        self.folder = folder.resolve()
        self.names = [f"n{number}" for number in range(1, count + 1)]
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._lost: dict[str, list[psutil.Process]] = {}
        self._resumed = time.monotonic()
        self._write(cores, node_timeout)

    @property
    def environment(self) -> dict[str, str]:
        """Makes Slurm's client commands use this cluster."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def start(self) -> None:
        """Starts all daemons and waits until the nodes are idle."""
        self.start_controller()
        for name in self.names:
            self.start_node(name)
        self._until(
            lambda: [state for state, _ in self.states().values()] == ["idle"] * len(self.names),
            "the nodes are not idle",
        )

    def start_controller(self) -> None:
        self._daemons["slurmctld"] = self._spawn("slurmctld", "-D")

    def start_node(self, name: str) -> None:
        """Starts a node's daemon; what it ran when it was lost is gone."""
        for process in self._lost.pop(name, []):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        stepd = find("slurmstepd")
        assert stepd
        self._daemons[name] = self._spawn("slurmd", "-D", "-N", name, "-d", stepd)

    @property
    def daemons(self) -> dict[str, int]:
        """The process IDs of the daemons that run, by name: slurmctld, n1, ..."""
        return {name: daemon.pid for name, daemon in self._daemons.items() if daemon.poll() is None}

    def keep_running(self) -> None:
        """Starts daemons again that have ended, and returns nodes to service that Slurm has drained, as an administrator would."""
        for name in {"slurmctld", *self.names} - self.daemons.keys():
            if name == "slurmctld":
                self.start_controller()
            else:
                self.start_node(name)
        self.resume_drained()

    def resume_drained(self) -> None:
        """Every few seconds, returns the nodes to service that Slurm has drained; those with the reason `KEPT` stay drained.

        A controller that was killed before it stored a job gives the job's ID again, and drains the node that still knows it.
        """
        if time.monotonic() - self._resumed < _RESUME_SECONDS or "slurmctld" not in self.daemons:
            return
        self._resumed = time.monotonic()
        states = self.states().items()
        if drained := [name for name, (state, why) in states if state.startswith("dr") and why != KEPT]:  # drain, drng
            self.resume(drained)

    def resume(self, names: list[str]) -> None:
        """Returns nodes to service."""
        with contextlib.suppress(subprocess.CalledProcessError, subprocess.TimeoutExpired):
            self.call("scontrol", "update", f"NodeName={','.join(names)}", "State=RESUME")

    def kill(self, name: str) -> None:
        """Kills a daemon (slurmctld, n1, ...) with SIGKILL; the jobs of a node go on."""
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()

    def lose(self, name: str) -> None:
        """Kills a node's daemon and freezes all that it runs until `start_node`: its connections stay open, as those of a machine
        that has lost power do."""
        self.kill(name)
        tasks = [process for process in psutil.process_iter() if self._is_ours(process, SLURMD_NODENAME=name)]
        parents = {parent.pid for task in tasks if (parent := _parent(task))}
        self._lost[name] = [*(step for step in _steps() if step.pid in parents), *tasks]
        for process in self._lost[name]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()

    def states(self) -> dict[str, tuple[str, str]]:
        """The state of each node in sinfo's words, and the reason if it is out of service; empty while the controller does not
        answer."""
        try:
            lines = self.call("sinfo", "--noheader", "--Node", "--partition=batch", "--format=%N|%t|%E").splitlines()
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            return {}
        fields = (line.split("|", 2) for line in lines)
        return {name: (state, reason) for name, state, reason in fields}

    def call(self, *argv: str) -> str:
        """What a client command prints.

        Raises:
            subprocess.CalledProcessError: it failed; a note has what it printed as the error.
        """
        env = os.environ | self.environment
        try:
            return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=30, check=True).stdout
        except subprocess.CalledProcessError as error:
            error.add_note(error.stderr)
            raise

    def cancel_all(self) -> None:
        """Cancels all jobs and waits for their end.

        Raises:
            RuntimeError: jobs are left after a minute.
        """
        self.call("scancel", f"--user={getpass.getuser()}")
        self._until(lambda: not self.call("squeue", "--noheader").split(), "jobs are left")

    def stop(self) -> None:
        """Cancels all jobs and ends all daemons."""
        with contextlib.suppress(subprocess.SubprocessError, RuntimeError):
            self.cancel_all()
        daemons = [*self._daemons.values()]
        steps = [process for process in _steps() if self._is_ours(process)]
        for daemon in daemons:
            daemon.send_signal(signal.SIGTERM)
        for daemon in daemons:
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            daemon.kill()
            daemon.wait()
        for step in steps:
            with contextlib.suppress(psutil.NoSuchProcess):
                step.kill()

    def __enter__(self) -> "SlurmCluster":
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _is_ours(self, process: psutil.Process, **variables: str) -> bool:
        try:
            return (self.environment | variables).items() <= process.environ().items()
        except psutil.Error:
            return False

    def _spawn(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        path = find(program)
        assert path
        with (self.folder / "daemons.log").open("ab") as log:
            argv = [path, "-f", self.environment["SLURM_CONF"], *arguments]
            # A daemon does not belong to the installation whose variables this process has.
            env = {
                name: value for name, value in os.environ.items() if not name.startswith("LATHE_")
            } | self.environment
            return subprocess.Popen(
                argv,
                cwd=self.folder,  # also for core files
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _write(self, cores: int, node_timeout: int) -> None:
        for name in ("state", *(f"spool-{name}" for name in self.names)):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        host = socket.gethostname().split(".")[0]
        controller, *ports = _free_ports(1 + len(self.names))
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cores} RealMemory=2000 State=UNKNOWN"
            for name, port in zip(self.names, ports, strict=True)
        )
        text = _CONFIGURATION.format(
            host=host, controller=controller, user=getpass.getuser(), folder=self.folder, nodes=nodes,
            node_timeout=node_timeout, requeue=1,
        )  # fmt: skip
        (self.folder / "slurm.conf").write_text(text, encoding="utf-8")

    def _until(self, condition: Callable[[], bool], problem: str, seconds: float = _START_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                log = self.folder / "daemons.log"
                raise RuntimeError(f"{problem} after {seconds:.0f} s\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.2)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _steps() -> list[psutil.Process]:
    """The processes by which Slurm runs the steps of jobs, of any cluster on this machine."""
    return [process for process in psutil.process_iter(["name"]) if process.info["name"] == "slurmstepd"]


def _parent(process: psutil.Process) -> psutil.Process | None:
    try:
        return process.parent()
    except psutil.NoSuchProcess:
        return None


def main() -> None:
    if lacking := missing():
        sys.exit(
            f"Slurm is not installed: {', '.join(lacking)} missing. Debian: apt-get install slurmctld slurmd slurm-client"
        )
    with SlurmCluster(Path(sys.argv[1])) as cluster:
        print(f"export SLURM_CONF={cluster.environment['SLURM_CONF']}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
