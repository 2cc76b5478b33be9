"""A process that imports the training libraries once and forks every launcher and rank of the tests: importing takes longer
than a tiny training does. The launcher is accelerate's own; only its call of `subprocess.Popen` gets a forked process.

`python tests/programs/warm_launcher.py FOLDER SESSION` reads a line of JSON from each connection to FOLDER/socket and answers with
the process ID of the fork: a launcher, which writes its exit code to the file that the request names, or another program, for
warm_python.py. It ends, and removes FOLDER, with the process SESSION.
"""

import contextlib
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

from training.ranks.launch import main as accelerate_launch
from training.ranks.stopping import die_with_parent

LIBRARIES = (
    "torch.distributed.fsdp", "torch.distributed.run", "transformers.trainer", "peft", "deepspeed",
    # what they import later, of what most ranks need
    "setuptools", "torch._subclasses.schema_check_mode", "torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks",
    "transformers.models.llama.modeling_llama", "peft.tuners.lora.bnb", "peft.utils.transformers_weight_conversion",
    "deepspeed.module_inject.auto_ep_layer", "deepspeed.ops.op_builder.all_ops", "deepspeed.runtime.zero.muon.muon_optimizer",
    "deepspeed.runtime.superoffload.superoffload_stage3",
)  # fmt: skip
PACKAGES = ("models", "batches", "reports", "ranks", "trainer", "results")


def main(folder: Path, session: int) -> None:
    end = os.pidfd_open(session)
    import_libraries()
    signal.signal(signal.SIGCHLD, reap)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "bound"))
        server.listen()
        (folder / "bound").rename(folder / "socket")  # from now on it answers
        while end not in select.select([server, end], [], [])[0]:
            connection, _ = server.accept()
            with connection:
                answer(connection)
    shutil.rmtree(folder, ignore_errors=True)


def answer(connection: socket.socket) -> None:
    """Forks a process for the request, and answers with its ID; a program answers for itself."""
    text, streams, *_ = socket.recv_fds(connection, 2**16, 3)
    while text and not text.endswith(b"\n"):
        text += connection.recv(2**16)
    if not text:  # it only made sure that this process runs
        return
    request = json.loads(text)
    if "program" in request:
        fork(lambda: run_program(connection, streams, **request))
    else:
        connection.sendall(f"{fork(lambda: launch(request))}\n".encode())
    for stream in streams:
        os.close(stream)


def reap(*_: object) -> None:
    """Waits for launchers that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def import_libraries() -> None:
    for name in LIBRARIES:
        importlib.import_module(name)
    for package in PACKAGES:
        path = importlib.import_module(f"training.{package}").__path__
        for module in pkgutil.iter_modules(path):
            importlib.import_module(f"training.{package}.{module.name}")
    get_checkpoint_conversion_mapping("llama")  # compiles those of all models
    tasks = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    threads = len(tasks) - tasks.count("jemalloc_bg_thd")  # jemalloc handles forks
    assert threads == 1, f"a process with threads cannot be forked safely: {tasks}"
    gc.freeze()


def fork(run: Callable[[], int]) -> int:
    """The process ID of a child that ends with the exit code of `run`, and with this process."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    die_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    code = exit_code(run)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def exit_code(run: Callable[[], int | None]) -> int:
    """Returns the exit code of an interpreter that runs only this function."""
    try:
        return run() or 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return int(end.code) if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1


def launch(request: dict[str, Any]) -> int:
    """Runs accelerate's launcher with the request's arguments, environment, folder and log."""
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for new, number in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
        os.dup2(new, number)
    enter(request["env"], request["folder"], request["arguments"])
    ForkedRank.waiting = [ready_rank() for _ in range(request["ranks"])]
    subprocess.Popen = subprocess_handler.Popen = ForkedRank  # type: ignore[misc]
    code = exit_code(accelerate_launch)
    part = Path(request["exit_code"] + ".part")
    part.write_text(str(code))
    part.rename(request["exit_code"])
    return code


def run_program(
    connection: socket.socket, streams: list[int], program: list[str], executable: str, env: dict[str, str], folder: str
) -> int:
    """Runs `python [-u] [-W ...] -m MODULE ...` or `-c CODE ...` with the streams of the process that asks for it, which gets the
    process ID and then the exit code."""
    connection.sendall(f"{os.getpid()}\n".encode())
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    end_with(connection)
    sys.executable = executable
    words = iter(program)
    while (kind := next(words)) not in ("-m", "-c"):
        if kind == "-W":
            next(words)
    text, *arguments = words
    enter(env, folder, [text if kind == "-m" else kind, *arguments])
    if kind == "-m":
        code = exit_code(lambda: runpy.run_module(text, run_name="__main__", alter_sys=True) and None)
    else:
        code = exit_code(lambda: exec(text, {"__name__": "__main__"}))
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(connection.fileno(), f"{code}\n".encode())  # a confined program cannot send
    return code


def end_with(connection: socket.socket) -> None:
    """Lets the kernel end this process when the other end of the connection is closed. A thread would keep it from the jail."""
    fcntl.fcntl(connection, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(connection, fcntl.F_SETFL, fcntl.fcntl(connection, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([connection], [], [], 0)[0]:  # closed before
        os.kill(os.getpid(), signal.SIGKILL)


def enter(env: dict[str, str], folder: str, arguments: list[str]) -> None:
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    sys.argv = arguments


def ready_rank() -> tuple[int, int]:
    """The process ID of a child that waits for its command, and the pipe for it: forked before any thread starts."""
    reading, writing = os.pipe()

    def wait() -> int:
        os.setsid()  # like torchrun
        with os.fdopen(reading) as commands:
            run_rank(**json.loads(commands.readline()))
        return 0

    child = fork(wait)
    os.close(reading)
    return child, writing


def run_rank(arguments: list[str], env: dict[str, str], folder: str) -> None:
    """Runs `python -u -m MODULE ...` or `python -u FILE ...` in this process."""
    kind, *words = [word for word in arguments[1:] if word != "-u"]
    if kind == "-m":
        enter(env, folder, words)
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        enter(env, folder, [kind, *words])
        runpy.run_path(kind, run_name="__main__")


class ForkedRank(subprocess.Popen):  # type: ignore[type-arg]
    """A Popen whose process was forked beforehand. Other programs start as usual."""

    waiting: list[tuple[int, int]] = []  # noqa: RUF012

    def _execute_child(self, args: Any, *rest: Any) -> None:
        if not (self.waiting and args[0] == sys.executable):
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        folder, env = rest[4:6]
        assert rest[9:15] == (-1,) * 6, "a rank writes into its launcher's log"
        self.pid, pipe = self.waiting.pop(0)
        self._child_created = True
        command = {"arguments": list(args), "env": dict(os.environ if env is None else env)}
        with os.fdopen(pipe, "w") as stream:
            stream.write(json.dumps(command | {"folder": os.fspath(folder or Path.cwd())}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
