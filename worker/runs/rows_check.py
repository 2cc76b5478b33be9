"""Sample rows of a run that is not queued yet, as it would train on them, and their faults; for pages, commands and REST."""

import hashlib
import json
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from training import rules
from training.config.choices import TemplateCheck
from training.config.fields import ConfigError
from training.config.machine import A_CLUSTER
from training.config.run_config import RunConfig
from training.config.task import Task
from training.errors import Problem
from training.model_info.config_json import local_folder
from training.model_info.folder import has_tokenizer
from training.template_check.findings import ERROR, Fault, Finding, TemplateReport
from training.tokens.store import tokenizer_fingerprint
from worker.allowed_paths import AllowedPaths
from worker.datasets import datasets
from worker.datasets.run_data import RunData
from worker.machine import programs
from worker.machine.model_files import with_links
from worker.machine.programs import Result
from worker.runs.checks import template_problems
from worker.runs.settle import settle
from worker.settings import get_settings
from worker.store.tables import Dataset

_KEPT = 64  # reports, for the files of tokenizer and data and the settings: Start needs no second check of what a page has shown
_SETTINGS = (
    "model", "revision", "task", "max_length", "train_on_prompt", "method", "modules_to_save", "target_modules",
    "trainable_layers", "chat_template", "chat_template_kwargs", "reasoning_history", "loss_on", "loss_field", "weight_field",
)  # fmt: skip
_FIELDS = ("chat_template", "chat_template_kwargs", "loss_on", "weight_field")
_reports: OrderedDict[str, TemplateReport] = OrderedDict()
_lock = Lock()


@dataclass(frozen=True)
class CheckedSet:
    """The name of a training data set, and the report on some of its rows."""

    name: str
    report: TemplateReport


def check_rows(config: RunConfig, allowed: AllowedPaths) -> list[CheckedSet]:
    """The report on each training data set of a run. Takes about two seconds.

    Raises:
        ConfigError: a file is not there or not allowed, the chat template is not valid, or rows of this run cannot be checked.
    """
    settled = settle(config, allowed, files=["chat_template"])
    if problems := [*settled.refused, *_invalid(settled.config), *template_problems(settled)]:
        raise ConfigError(problems)
    config = settled.config
    if not _can_check(config):
        raise ConfigError([_why_not(config)])
    named = [item for item in settled.data if item.field == "data"]
    if missing := [item.data for item in named if isinstance(item.data, Problem)]:
        raise ConfigError(missing)
    return [
        CheckedSet(
            item.source.name or item.data.name,
            _report(config, item.data, item.source.columns or config.columns),
        )
        for item in named
        if not isinstance(item.data, Problem)
    ]


def as_document(checked: list[CheckedSet]) -> dict[str, Any]:
    """The reports as a dictionary for JSON."""
    return {"data_sets": [{"name": data_set.name, **data_set.report.as_json()} for data_set in checked]}


def of_document(document: dict[str, Any]) -> list[CheckedSet]:
    """The reports in such a dictionary."""
    return [
        CheckedSet(data_set.pop("name"), TemplateReport.from_json(data_set))
        for data_set in map(dict, document["data_sets"])
    ]


def _invalid(config: RunConfig) -> list[Problem]:
    """What makes the template or its arguments unusable."""
    return [
        Problem(conflict.settings[0], None, conflict.reason, conflict.fix, conflict.changes)
        for conflict in rules.check(config, A_CLUSTER)
        if conflict.blocking and conflict.settings[0] in _FIELDS
    ]


def _why_not(config: RunConfig) -> Problem:
    if not config.task.traits.renders_rows:
        fitting = ", ".join(task.value for task in Task if task.traits.renders_rows)
        message = "does not train answers of a chat, so its rows are not rendered and checked."
        return Problem("task", config.task.value, message, f"Choose {fitting}.")
    fix = "Give a local folder with tokenizer.json. Rows for a hub model are checked by the run itself."
    return Problem("model", config.model, "has no tokenizer in a folder of this machine.", fix)


def _can_check(config: RunConfig) -> bool:
    """True if rows of this run can be checked here: its task trains answers, and its tokenizer is in a folder of this machine."""
    folder = local_folder(config.model)
    return config.task.traits.renders_rows and folder is not None and has_tokenizer(folder)


def _report(config: RunConfig, data: Dataset | Path, columns: str | None = None) -> TemplateReport:
    """The report on some rows of a data set or file; `config.model` is a folder, and `chat_template` the text of a template.

    Takes about two seconds the first time. A template that exceeds a limit is reported as a fault.
    """
    columns = columns or (data.columns_map if isinstance(data, Dataset) else None)
    key = _key(config, data, columns)
    with _lock:
        earlier = _reports.get(key)
    if earlier is not None:
        return earlier
    new, remembered = _run(config, datasets.path_of(data) if isinstance(data, Dataset) else data, columns)
    if not remembered:
        return new
    with _lock:
        _reports[key] = new
        while len(_reports) > _KEPT:
            _reports.popitem(last=False)
    return new


def faults(config: RunConfig, data: RunData) -> list[Problem]:
    """The faults in rows of the training data that prevent the start of the run, as problems of the settings that fix them."""
    if (
        not get_settings().check_templates
        or config.template_check is not TemplateCheck.STRICT
        or not _can_check(config)
    ):
        return []
    problems = [
        _problem(finding, item.dataset.name)
        for item in data.sets
        if item.field == "data"
        for finding in _report(config, item.dataset, item.columns).errors
        if finding.fault is not Fault.NOT_CHECKED
    ]
    return list({(problem.field, problem.message): problem for problem in problems}.values())


def _problem(finding: Finding, name: str) -> Problem:
    message = f"{name}: {finding.sentence} ({finding.fault.value})"
    fix = f"{finding.fix} To start all the same, set template_check to warn."
    return Problem(finding.setting, None, message, fix, finding.changes)


def _key(config: RunConfig, data: Dataset | Path, columns: str | None) -> str:
    values = config.model_dump(mode="json", include=set(_SETTINGS))
    folder = Path(config.model).expanduser()  # `_can_check` says that there is one
    content = data.sha256 if isinstance(data, Dataset) else f"{data} {_changed(data)}"
    files = [(name, _changed(folder / name)) for name in ("config.json", "generation_config.json")]
    parts = [tokenizer_fingerprint(config.model, config.revision), content, columns, values, files]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _changed(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


def _run(config: RunConfig, file: Path, columns: str | None) -> tuple[TemplateReport, bool]:
    """The report, and whether it would be the same again: not if the program failed for a reason of its own."""
    settings = config.model_dump(mode="json", include=set(_SETTINGS))
    model = str(Path(config.model).expanduser())
    asked = {"config": settings | {"model": model, "data": "data"}, "file": str(file.absolute()), "columns": columns}
    try:
        limits = programs.TEMPLATE_CHECK.limits(file, *with_links(Path(model)), length=file.stat().st_size)
    except OSError as error:
        return _failed(f"The data file cannot be read: {error.strerror}.", "Import it again."), False
    result = programs.run_limited(programs.TEMPLATE_CHECK, [], limits, text=json.dumps(asked))
    try:
        values: dict[str, Any] = json.loads(result.output.splitlines()[-1])
        return TemplateReport.from_json(values), True
    except (ValueError, IndexError, KeyError, TypeError):
        return _crashed(result)


def _crashed(result: Result) -> tuple[TemplateReport, bool]:
    if result.too_slow:
        message = f"Rendering the first rows takes more than {programs.TEMPLATE_CHECK.seconds} s of CPU time."
        return _failed(message, "Check the chat template for an endless loop.", Fault.CANNOT_RENDER), True
    if result.was_killed:
        return _failed("The program that renders the rows was killed.", "Check them again."), False
    if result.out_of_memory:
        message = "Rendering the first rows needs too much memory."
        return _failed(message, "Check the chat template for a loop that repeats text.", Fault.CANNOT_RENDER), True
    return _failed(f"The rows could not be checked ({result.last_line}).", "See docs/templates.md."), False


def _failed(message: str, fix: str, fault: Fault = Fault.NOT_CHECKED) -> TemplateReport:
    return TemplateReport((Finding(fault, ERROR, message, fix),))
