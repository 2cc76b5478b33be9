"""Light ranks for benchmarks.chaos: a launcher and ranks that write real records and checkpoints without training a model.

    python benchmarks/chaos/ranks.py launch RUN_FOLDER [NODE ADDRESS PORT]

Each step's state is a hash of the state before it, and its loss is computed from the state. If a step is skipped, repeated or
resumed from the wrong place, every later loss changes.
"""

import fcntl
import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.like_torchrun import wait_for_ranks
from training.config.run_config import RunConfig
from training.ranks.stopping import die_with_parent
from training.reports.report import Report
from training.run_folder import checkpoints
from training.run_folder.events import CheckpointSaved, Finished, Metrics, Planned, Resumed
from training.run_folder.paths import CONFIG_FILE, checkpoint_dir, checkpoint_step, checkpoints_dir

STEP_SECONDS = 0.03
MEETING_SECONDS = 60.0
DOUBLED_FILE = "doubled.txt"
RESULT_FILE = "state.txt"
_PADDING = bytes(2**18)  # makes a checkpoint file large enough that a fault can interrupt writing it
_UNKNOWN = {"train_rows": 1, "eval_rows": 0, "skipped_rows": 0, "truncated_rows": 0, "target_modules": []}


def states(seed: int, first: int, last: int, state: str = "") -> Iterator[tuple[int, str]]:
    """Yields steps `first` to `last`, each with the state after it. `state` is the state before `first`; empty at the start."""
    state = state or str(seed)
    for step in range(first, last + 1):
        state = hashlib.sha256(f"{state} {step}".encode()).hexdigest()
        yield step, state


def loss_of(state: str) -> float:
    """Returns the loss of the step that led to `state`, between 0 and 1."""
    return int(state[:12], 16) / 16**12


def hold_alone(run_dir: Path, rank: int) -> int:
    """Takes this rank's lock in the run; if another process has it, records that.

    Returns the lock's descriptor, which the kernel closes with the process.
    """
    lock = os.open(run_dir / f"rank-{rank}.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with (run_dir / DOUBLED_FILE).open("a") as stream:
            stream.write(f"rank {rank}, process {os.getpid()}: another process trains the same rank\n")
    return lock


def launch(run_dir: Path) -> int:
    """Starts the ranks like torchrun: each has its own session; when one fails, the others receive SIGTERM."""
    config = RunConfig.model_validate_json((run_dir / CONFIG_FILE).read_text(encoding="utf-8"))
    ends = socket.socketpair()
    ranks = []
    for number in range(config.num_processes):
        end = ends[number].fileno()
        argv = [sys.executable, __file__, "rank", str(run_dir), str(number), str(end)]
        ranks.append(subprocess.Popen(argv, start_new_session=True, pass_fds=[end]))
    for half in ends:
        half.close()
    return wait_for_ranks(ranks)


def launch_on_node(run_dir: Path, node: int, address: str, port: int) -> int:
    """Starts the only rank of a machine of two; the ranks are connected over TCP."""
    end = _connected(node, address, port)
    argv = [sys.executable, __file__, "rank", str(run_dir), str(node), str(end.fileno())]
    os.environ["GROUP_RANK"] = str(node)
    rank = subprocess.Popen(argv, start_new_session=True, pass_fds=[end.fileno()])
    end.close()
    return wait_for_ranks([rank])


def _connected(node: int, address: str, port: int) -> socket.socket:
    if node == 0:
        with socket.create_server((address, port)) as server:
            server.settimeout(MEETING_SECONDS)
            connection = server.accept()[0]
            connection.settimeout(None)
            return connection
    deadline = time.monotonic() + MEETING_SECONDS
    while True:
        try:
            return socket.create_connection((address, port))
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


class Rank:
    """One of the one or two ranks of a run."""

    def __init__(self, run_dir: Path, rank: int, peer: socket.socket) -> None:
        machine = int(os.environ.get("GROUP_RANK", "0"))
        self.run_dir, self.report, self._peer = run_dir, Report(run_dir, rank, machine), peer
        self._asked = False
        signal.signal(signal.SIGTERM, self._on_terminate)

    def _on_terminate(self, *_: object) -> None:
        self._asked = True

    def train(self) -> None:
        """Runs the steps of a run, as training/train.py does."""
        self.report.started(device="cpu")
        self.report.enter("starting")
        text = (self.run_dir / CONFIG_FILE).read_text(encoding="utf-8")
        self.config = RunConfig.model_validate_json(text)
        self.report.enter("loading model")
        first, state = self.resume()
        last = self.config.max_steps or 1
        self.plan(first, last)
        self.report.enter("training")
        step = first
        for step, state in states(self.config.seed, first + 1, last, state):  # noqa: B020 - continues from the state
            time.sleep(STEP_SECONDS)
            stop = self.agree(state)
            self.report.for_run(Metrics(step=step, values={"loss": loss_of(state)}))
            if stop or step % int(self.config.save_steps) == 0:
                self.save(step, state)
            if stop:
                self.report.for_run(Finished(outcome="stopped", step=step, summary={}))
                return
        self.report.enter("saving")
        if self.report.rank == 0:
            (self.run_dir / "adapter").mkdir(exist_ok=True)
            (self.run_dir / "adapter" / RESULT_FILE).write_text(state)
        self.report.for_run(Finished(outcome="finished", step=step, summary={"steps": step}))

    def plan(self, first: int, last: int) -> None:
        numbers = {"world_size": self.config.num_processes, "trainable_parameters": 1, "total_parameters": 1}
        how = {"engine": "none", "zero_stage": None, "precision": "fp32"}
        self.report.for_run(Planned(total_steps=last, start_step=first, **numbers, **how, **_UNKNOWN))  # type: ignore[arg-type]

    def resume(self) -> tuple[int, str]:
        """Returns step and state to resume from, which rank 0 chooses for all; rank 0 also deletes incomplete checkpoints."""
        chosen = b""
        if self.report.rank == 0:
            checkpoint, rejected = checkpoints.newest_checkpoint(self.run_dir)
            for leftover in checkpoints.unsealed(self.run_dir):
                checkpoints.discard(leftover)
            chosen = checkpoint.name.encode() if checkpoint else b"none"
            if checkpoint:
                step = checkpoint_step(checkpoint) or 0
                self.report.for_run(Resumed(step=step, path=checkpoint.name, rejected=rejected))
        name = self.exchange(chosen).decode() or chosen.decode()
        if name == "none":
            return 0, ""
        folder = checkpoints_dir(self.run_dir) / name
        data = (folder / f"rank-{self.report.rank}.txt").read_bytes()
        return checkpoint_step(folder) or 0, data[:64].decode()

    def agree(self, state: str) -> bool:
        """Waits for the other rank at the same step; returns True if any rank received SIGTERM.

        Raises:
            ValueError: the other rank has another state.
        """
        asked = self._asked  # may change during the exchange, after the other rank has been told
        answer = self.exchange(f"{state}{int(asked)}".encode()).decode()
        if answer and answer[:-1] != state:
            raise ValueError(f"rank {self.report.rank} is at {state}, the other one at {answer[:-1]}")
        return asked or answer.endswith("1")

    def exchange(self, message: bytes) -> bytes:
        """Returns the other rank's message at the same point; empty if there is no other rank or no message.

        Raises:
            ConnectionError: the other rank has ended.
        """
        if self.config.num_processes == 1:
            return b""
        self._peer.sendall(message + b"\n")
        answer = bytearray()
        while not answer.endswith(b"\n"):
            if not (byte := self._peer.recv(1)):
                raise ConnectionError("the other rank has ended")
            answer += byte
        return bytes(answer[:-1])

    def save(self, step: int, state: str) -> None:
        """Saves a checkpoint in the same order as training: each rank's file, a barrier, the manifest; then deletes older ones."""
        with self.report.during("saving"):
            folder = checkpoint_dir(self.run_dir, step)
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / f"rank-{self.report.rank}.txt").open("wb") as stream:
                stream.write(state.encode())
                stream.write(_PADDING)
            self.exchange(b"written")
            if self.report.rank == 0:
                size = checkpoints.seal(folder)
                checkpoints.prune(self.run_dir, self.config.save_total_limit)
                path = str(folder.relative_to(self.run_dir))
                self.report.for_run(CheckpointSaved(step=step, path=path, bytes=size))


def main() -> int:
    """Runs as the launcher or as a rank. Returns the exit code."""
    what, run_dir = sys.argv[1], Path(sys.argv[2])
    die_with_parent()
    if what == "launch":
        node = sys.argv[3:]
        return launch_on_node(run_dir, int(node[0]), node[1], int(node[2])) if node else launch(run_dir)
    number, peer = int(sys.argv[3]), socket.socket(fileno=int(sys.argv[4]))
    _lock = hold_alone(run_dir, number)
    rank = Rank(run_dir, number, peer)
    try:
        rank.train()
        rank.report.left()
    except Exception as error:
        rank.report.failed(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
