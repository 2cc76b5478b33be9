"""Forks supervisors and workers from a process that has loaded their code, which takes longer than what tests do with them.

Run as a module, it reads a line of JSON for each child from standard input, prints the child's process number, and ends with its
input. The children train with the stand-in for the training program.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import psutil
from paths import TESTS
from programs import stand_in

from worker.machine import processes
from worker.settings import ROOT


def celery(arguments: list[str]) -> int:
    from celery.__main__ import main

    sys.argv = ["celery", *arguments]
    main()
    return 0


def evaluate(arguments: list[str]) -> int:
    from worker.evaluations import supervisor

    sys.argv = ["supervisor", *arguments]
    return supervisor.main()


def build(arguments: list[str]) -> int:
    from worker import builds

    sys.argv = ["builds", *arguments]
    return builds.main()


def drain(_: list[str]) -> int:
    from app.cli import serve
    from worker.queue import tasks

    words = tasks.worker_command()
    tasks.worker_command = lambda: [
        "programs.stand_in_worker" if word == "worker.queue.tasks" else word for word in words
    ]
    return told(serve.drained())


def up(arguments: list[str]) -> int:
    from programs import stand_in_up

    return told(stand_in_up.main(arguments))


def told(code: int) -> int:
    """Returns the exit code; its starter, which is not this process's parent, reads it in the log."""
    print(f"exit code {code}", flush=True)
    return code


PROGRAMS: dict[str, Callable[[list[str]], int]] = {
    "worker.supervision.supervisor": stand_in.supervise,
    "worker.evaluations.supervisor": evaluate,
    "worker.builds": build,
    "celery": celery,
    "drain": drain,
    "up": up,
}


class Forked:
    """A process that a nursery has forked, with the methods of `subprocess.Popen` that its starter calls."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.process = psutil.Process(pid)

    def poll(self) -> int | None:
        return 0 if processes.is_gone(self.process) else None

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end. Without pidfd_open, which fails once the process is gone: it is not this process's child."""
        while self.poll() is None:
            time.sleep(0.02)
        return 0

    def end(self) -> None:
        """Kills it and its descendants."""
        processes.kill_tree(self.pid)


class Nursery:
    """A process that forks others; it ends with this one."""

    def __init__(self, requests: TextIO, answers: TextIO, process: "subprocess.Popen[str] | None" = None) -> None:
        self._requests, self._answers, self._process = requests, answers, process
        self._lock = threading.Lock()

    @classmethod
    def started(cls) -> "Nursery":
        pipe = subprocess.PIPE
        argv, env = [sys.executable, "-m", "programs.stand_in_nursery"], os.environ | {"PYTHONPATH": str(ROOT)}
        begun = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, cwd=TESTS, env=env)
        assert begun.stdin and begun.stdout
        return cls(begun.stdin, begun.stdout, begun)

    @classmethod
    def forked(cls) -> "Nursery":
        """From this process, which has no threads yet."""
        (reading, requests), (answers, writing) = os.pipe(), os.pipe()
        if os.fork() == 0:
            os.close(requests)
            os.setsid()
            serve(os.fdopen(reading), os.fdopen(writing, "w"))
            os._exit(0)
        os.close(reading)
        os.close(writing)
        return cls(os.fdopen(requests, "w"), os.fdopen(answers))

    def fork(
        self, program: str, arguments: Sequence[str], log: Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None
    ) -> Forked:
        request = {"program": program, "arguments": list(arguments), "log": str(log), "cwd": str(cwd)}
        with self._lock:
            self._requests.write(json.dumps(request | {"env": dict(os.environ if env is None else env)}) + "\n")
            self._requests.flush()
            return Forked(int(self._answers.readline()))

    def start_detached(
        self, argv: list[str], *, output: Path, cwd: Path, env: Mapping[str, str] | None = None
    ) -> Forked:
        """In the place of the worker's `start_detached`, for `python -m MODULE ...`."""
        return self.fork(argv[2], argv[3:], output, cwd, env)

    def close(self) -> None:
        if self._process:
            self._process.communicate()


def load() -> None:
    """Imports what the children need; not what reads the settings."""
    from celery.bin import celery, worker  # noqa: F401
    from kombu.transport import redis  # noqa: F401

    from worker import builds  # noqa: F401
    from worker.evaluations import supervisor as evaluation_supervisor  # noqa: F401
    from worker.forecasts import run_forecast  # noqa: F401
    from worker.notifications import delivery  # noqa: F401
    from worker.queue import reaper  # noqa: F401
    from worker.supervision import supervisor  # noqa: F401


def serve(requests: TextIO, answers: TextIO) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # exit codes are not read; avoids zombies
    for line in requests:
        child = os.fork()
        if child == 0:
            answers.close()
            os._exit(begun(json.loads(line)))
        print(child, file=answers, flush=True)


def begun(request: dict[str, Any]) -> int:
    """Runs a child's program and returns its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for new, number in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
        os.dup2(new, number)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    try:
        return PROGRAMS[request["program"]](request["arguments"])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1


if __name__ == "__main__":
    load()
    with contextlib.suppress(KeyboardInterrupt):
        serve(sys.stdin, os.fdopen(os.dup(1), "w"))
