"""Reports the metrics of a run to experiment trackers, each in a thread of its own.

A tracker that is slow, unreachable or broken therefore delays no step and ends no run: the run gets a warning and continues.
"""

import contextlib
import copy
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from training.config.name_values import as_names, missing_trackers
from training.config.run_config import RunConfig
from training.reports.report import Report, memory_now
from training.run_folder.paths import TENSORBOARD_FOLDER, TRACKERS_FILE
from training.run_folder.record import Lineage

_MOST_WAITING = 1000
_END_SECONDS, _HURRIED_SECONDS = 20.0, 5.0
_CREDENTIALS = re.compile(r"//[^\s/@]+@")


@dataclass(frozen=True)
class TrackedRun:
    """A run as trackers get it: id, name, configuration and folder, and the model and state of the trainer that begins."""

    id: str
    name: str
    config: RunConfig
    run_dir: Path
    arguments: TrainingArguments
    state: TrainerState
    model: Any

    @classmethod
    def of(cls, config: RunConfig, run_dir: Path, args: TrainingArguments, state: TrainerState, model: Any) -> Any:
        """The run of a folder. Its arguments show the run's configuration in place of transformers' own values."""
        lineage = Lineage.read(run_dir)
        run_id, name = lineage.run or run_dir.name, lineage.name or config.title
        arguments = copy.copy(args)
        arguments.run_name, arguments.project = name, config.report_project
        vars(arguments)["to_dict"] = lambda: config.model_dump(mode="json")  # the callbacks send it as parameters
        return cls(run_id, name, config, run_dir, arguments, copy.copy(state), model)


@dataclass(frozen=True)
class Connection:
    """An open run of a tracker: its callback, how to end it (with True after an error), and where to find it."""

    callback: TrainerCallback
    arguments: TrainingArguments
    finish: Callable[[bool], Any]
    place: str

    def log(self, state: TrainerState, logs: dict[str, float]) -> None:
        """Sends the metrics of a step."""
        self.callback.on_log(self.arguments, state, TrainerControl(), logs=logs)


def tensorboard(run: TrackedRun) -> Connection:
    """Writes event files into the run's folder."""
    from torch.utils.tensorboard import SummaryWriter
    from transformers.integrations import TensorBoardCallback

    folder = run.run_dir / TENSORBOARD_FOLDER
    # Steps of an earlier attempt that are trained again are dropped.
    writer = SummaryWriter(str(folder), purge_step=run.state.global_step + 1)
    callback = _begun(TensorBoardCallback(writer), run, run.arguments)
    return Connection(callback, run.arguments, lambda _: writer.close(), str(folder))


def wandb(run: TrackedRun) -> Connection:
    """Opens the Weights & Biases run with the run's id."""
    from transformers.integrations import WandbCallback

    tags = [tag for tag in (os.environ.get("WANDB_TAGS"), "lathe", run.id) if tag]
    os.environ |= {"WANDB_PROJECT": run.config.report_project, "WANDB_TAGS": ",".join(tags)}
    os.environ |= {"WANDB_RUN_ID": run.id, "WANDB_RESUME": "allow"}
    _default({"WANDB_DIR": str(run.run_dir), "WANDB_CONSOLE": "off", "WANDB_SILENT": "true"})
    callback = _begun(WandbCallback(), run, run.arguments)
    library = callback._wandb
    place = library.run.url or f"offline, in {library.run.dir}"
    return Connection(callback, run.arguments, lambda failed: library.finish(exit_code=int(failed)), place)


def mlflow(run: TrackedRun) -> Connection:
    """Opens an MLflow run, or the one of an earlier attempt, whose id is in the run's folder."""
    from transformers.integrations import MLflowCallback

    tags = json.loads(os.environ.get("MLFLOW_TAGS") or "{}") | {"lathe.run": run.id}
    os.environ |= {"MLFLOW_EXPERIMENT_NAME": run.config.report_project, "MLFLOW_TAGS": json.dumps(tags)}
    _default({"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"})
    if known := _known_id(run.run_dir):
        # MLflow refuses parameters that differ, and settings do after a step down.
        os.environ |= {"MLFLOW_RUN_ID": known, "MLFLOW_MAX_LOG_PARAMS": "0"}
    callback = _begun(MLflowCallback(), run, run.arguments)
    library, callback._async_log = callback._ml_flow, False  # this thread may wait, and then sees the error
    run_id = library.active_run().info.run_id
    (run.run_dir / TRACKERS_FILE).write_text(json.dumps({"mlflow": run_id}), encoding="utf-8")
    place = f"run {run_id} of experiment {run.config.report_project}"
    return Connection(
        callback, run.arguments, lambda failed: library.end_run("FAILED" if failed else "FINISHED"), place
    )


def trackio(run: TrackedRun) -> Connection:
    """Opens a Trackio run. Trackio knows runs by name, so the name contains the id."""
    from transformers.integrations import TrackioCallback

    arguments = copy.copy(run.arguments)
    arguments.run_name = f"{run.name} {run.id}"
    callback = _begun(TrackioCallback(), run, arguments)
    place = f"run {arguments.run_name} of project {run.config.report_project}"
    return Connection(callback, arguments, lambda _: callback._trackio.finish(), place)


CONNECT: dict[str, Callable[[TrackedRun], Connection]] = {
    "tensorboard": tensorboard,
    "wandb": wandb,
    "mlflow": mlflow,
    "trackio": trackio,
}


def _begun(callback: Any, run: TrackedRun, arguments: TrainingArguments) -> Any:
    callback.on_train_begin(arguments, run.state, TrainerControl(), model=run.model)
    return callback


def _default(variables: dict[str, str]) -> None:
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def _known_id(run_dir: Path) -> str | None:
    with contextlib.suppress(OSError, ValueError, KeyError):
        return str(json.loads((run_dir / TRACKERS_FILE).read_text(encoding="utf-8"))["mlflow"])
    return None


Logged = tuple[TrainerState, dict[str, float]]


class ExperimentTrackers(TrainerCallback):  # type: ignore[misc]
    """The trackers of a run's `report_to`. Only rank 0 reports."""

    def __init__(self, config: RunConfig, run_dir: Path, report: Report) -> None:
        self._config, self._run_dir, self._report = config, run_dir, report
        self._threads: list[TrackerThread] = []

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **_: Any
    ) -> None:
        """Starts a thread for each tracker that is installed."""
        names = as_names(self._config.report_to) if self._report.rank == 0 else ()
        absent = {problem.value: problem for problem in missing_trackers(self._config.report_to)}
        for name in names:
            if name in absent:
                self._report.warn(f"{name} gets no metrics of this run: it {absent[name].message} {absent[name].fix}")
                continue
            run = TrackedRun.of(self._config, self._run_dir, args, state, model)
            self._threads.append(TrackerThread(name, run, self._report))
            self._threads[-1].start()

    def log(self, state: TrainerState, logs: Mapping[str, float | None]) -> None:
        """Passes on what the trainer logged, with this rank's memory."""
        if not self._threads:
            return
        values = {name: value for name, value in {**logs, **memory_now()}.items() if value is not None}
        for thread in self._threads:
            thread.log(copy.copy(state), values)

    @contextmanager
    def closed_at_end(self, *, hurried: Callable[[], bool]) -> Iterator[None]:
        """A context that ends the run in each tracker; waits for what is still to be sent, if `hurried` only a few seconds."""
        failed = True
        try:
            yield
            failed = False
        finally:
            for thread in self._threads:
                thread.end(failed=failed)
            for thread in self._threads:
                thread.wait(_HURRIED_SECONDS if failed or hurried() else _END_SECONDS)


class TrackerThread(Thread):
    """Sends a run's metrics to one tracker; connects again with each metric while the tracker is unreachable."""

    def __init__(self, tracker: str, run: TrackedRun, report: Report) -> None:
        super().__init__(name=tracker, daemon=True)
        self._run, self._report = run, report
        self._connection: Connection | None = None
        self._waiting: SimpleQueue[Logged | None] = SimpleQueue()
        self._works, self._warned, self._ends, self._failed = True, False, False, False

    def log(self, state: TrainerState, logs: dict[str, float]) -> None:
        """Queues metrics, unless too many are waiting."""
        if self._waiting.qsize() < _MOST_WAITING:
            self._waiting.put((state, logs))

    def end(self, *, failed: bool) -> None:
        """Makes the thread end the tracker's run after the last metric."""
        self._failed, self._ends = failed, True
        self._waiting.put(None)

    def wait(self, seconds: float) -> None:
        """Waits for the thread's end; warns if it takes longer."""
        self.join(seconds)
        if self.is_alive():
            self._warn(f"no answer within {seconds:.0f} s")

    def run(self) -> None:
        """Works until the end; no error leaves this thread."""
        self._try(self._connected)
        while (logged := self._waiting.get()) is not None:
            if self._works or not self._ends:  # at the end, a tracker that failed is not tried again
                self._try(partial(self._send, *logged))
        if self._connection and self._works:
            self._try(partial(self._connection.finish, self._failed))

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = CONNECT[self.name](self._run)
            self._report.note(f"Reports to {self.name}: {self._connection.place}.")
        return self._connection

    def _send(self, state: TrainerState, logs: dict[str, float]) -> None:
        self._connected().log(state, logs)

    def _try(self, work: Any) -> None:
        try:
            work()
            self._works = True
        except Exception as error:
            self._works = False
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            self._warn(f"{type(error).__name__}: {lines[0] if lines else 'no message'}")

    def _warn(self, reason: str) -> None:
        """Writes a warning, the first time that something fails."""
        if self._warned:
            return
        self._warned = True
        shown = _CREDENTIALS.sub("//", reason)[:300]
        message = f"{self.name} did not take metrics of this run: {shown}. The run continues; Lathe has all metrics."
        with contextlib.suppress(OSError):
            self._report.warn(message)
