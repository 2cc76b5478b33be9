"""What a run trains on: sample rows rendered with its tokenizer and chat template, in a process with limits.

A report depends on the files of the tokenizer, the data and a few settings, and is kept for them: Start needs no second check of
what a page has shown.
"""

import hashlib
import json
from collections import OrderedDict
from pathlib import Path
from threading import Lock
from typing import Any

from training.config.choices import Task, TemplateCheck
from training.config.run_config import RunConfig
from training.errors import Problem
from training.model_info.folder import has_tokenizer
from training.template_check.findings import ERROR, Fault, Finding, Report
from training.tokens.store import tokenizer_fingerprint
from worker.datasets import datasets
from worker.datasets.run_data import RunData
from worker.machine import programs
from worker.machine.programs import Limits, Result
from worker.settings import get_settings
from worker.store.tables import Dataset

MEMORY_BYTES = 3 * 2**30  # of the program's address space, plus the file's size
SECONDS = 25  # of CPU time; rendering the rows takes about one
_KEPT = 64
TASKS = (Task.SFT, Task.DPO, Task.KTO, Task.ORPO)
_SETTINGS = (
    "model", "revision", "task", "max_length", "train_on_prompt", "method", "modules_to_save", "target_modules",
    "trainable_layers", "chat_template", "chat_template_kwargs", "reasoning_history", "loss_on", "loss_field", "weight_field",
)  # fmt: skip
_reports: OrderedDict[str, Report] = OrderedDict()
_lock = Lock()


def checks(config: RunConfig) -> bool:
    """True if rows of this run can be checked here: its task trains answers, and its tokenizer is in a folder of this machine."""
    return config.task in TASKS and has_tokenizer(Path(config.model).expanduser())


def report(config: RunConfig, data: Dataset | Path, columns: str | None = None) -> Report:
    """The report on some rows of a data set or file; `config.model` is a folder, and `chat_template` the text of a template.

    Takes about two seconds the first time. A template that exceeds a limit is reported as a fault.
    """
    columns = columns or (data.columns_map if isinstance(data, Dataset) else None)
    key = _key(config, data, columns)
    with _lock:
        earlier = _reports.get(key)
    if earlier is not None:
        return earlier
    new = _run(config, datasets.path_of(data) if isinstance(data, Dataset) else data, columns)
    if new is _BUSY:
        return new
    with _lock:
        _reports[key] = new
        while len(_reports) > _KEPT:
            _reports.popitem(last=False)
    return new


def faults(config: RunConfig, data: RunData) -> list[Problem]:
    """The faults in rows of the training data that prevent the start of the run."""
    if not get_settings().check_templates or not checks(config):
        return []
    told = [
        problem
        for item in data.sets
        if item.field == "data"
        for problem in problems(config, report(config, item.dataset, item.columns), item.dataset.name)
    ]
    return list({(problem.field, problem.message): problem for problem in told}.values())


def problems(config: RunConfig, found: Report, value: str) -> list[Problem]:
    """The faults that prevent the start of the run, as problems; `value` is the name of the data set."""
    if config.template_check is not TemplateCheck.STRICT:
        return []
    return [problem(finding, value) for finding in found.errors if finding.fault is not Fault.NOT_CHECKED]


def problem(finding: Finding, value: str) -> Problem:
    """A fault as a problem of the setting that fixes it."""
    message = f"{value}: {finding.sentence} ({finding.fault.value})"
    fix = f"{finding.fix} To start all the same, set template_check to warn."
    return Problem(finding.setting, None, message, fix, finding.changes)


def _key(config: RunConfig, data: Dataset | Path, columns: str | None) -> str:
    values = config.model_dump(mode="json", include=set(_SETTINGS))
    folder = Path(config.model).expanduser()
    content = data.sha256 if isinstance(data, Dataset) else f"{data} {_changed(data)}"
    files = [(name, _changed(folder / name)) for name in ("config.json", "generation_config.json")]
    parts = [tokenizer_fingerprint(config.model, config.revision), content, columns, values, files]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _changed(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


def _run(config: RunConfig, file: Path, columns: str | None) -> Report:
    settings = config.model_dump(mode="json", include=set(_SETTINGS))
    model = str(Path(config.model).expanduser().absolute())
    asked = {"config": settings | {"model": model, "data": "data"}, "file": str(file.absolute()), "columns": columns}
    try:
        limits = Limits(MEMORY_BYTES + file.stat().st_size, SECONDS)
    except OSError as error:
        return _failed(f"The data file cannot be read: {error.strerror}.", "Import it again.")
    result = programs.run_limited(programs.TEMPLATE_CHECK, [], limits, text=json.dumps(asked), variables=programs.HUB)
    try:
        values: dict[str, Any] = json.loads(result.output.splitlines()[-1])
        return Report.from_json(values)
    except (ValueError, IndexError, KeyError, TypeError):
        return _crashed(result)


def _crashed(result: Result) -> Report:
    if result.timed_out:
        return _BUSY
    if result.too_slow or result.code == -9:
        message = f"Rendering the first rows takes more than {SECONDS} s of CPU time."
        return _failed(message, "Check the chat template for an endless loop.", Fault.CANNOT_RENDER)
    if result.out_of_memory:
        message = "Rendering the first rows needs too much memory."
        return _failed(message, "Check the chat template for a loop that repeats text.", Fault.CANNOT_RENDER)
    return _failed(f"The rows could not be checked ({result.last_line}).", "See docs/templates.md.")


def _failed(message: str, fix: str, fault: Fault = Fault.NOT_CHECKED) -> Report:
    return Report((Finding(fault, ERROR, message, fix),))


_BUSY = _failed(
    f"The rows were not rendered in {3 * SECONDS} s, because the machine is busy.", "Check them again later."
)
"""Says nothing about the rows and is not remembered, so that the next check renders them."""
