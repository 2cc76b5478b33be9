"""Opens a run in each tracker, with transformers' callbacks. A resumed attempt continues the tracker's run.

Addresses and keys of the trackers' servers come from the worker's environment; none is stored.
"""

import contextlib
import copy
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from training.config.run_config import RunConfig
from training.run_folder.lineage import Lineage
from training.run_folder.paths import TENSORBOARD_FOLDER, TRACKERS_FILE


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
