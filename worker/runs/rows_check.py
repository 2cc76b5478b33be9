"""Sample rows of a run that is not queued yet, as it would train on them, and their faults; for pages, commands and REST."""

from dataclasses import dataclass
from typing import Any

from training import rules
from training.config.fields import ConfigError
from training.config.run_config import RunConfig
from training.errors import Problem
from training.template_check.findings import Report
from worker.allowed_paths import AllowedPaths
from worker.datasets import template_checking
from worker.runs.settle import A_CLUSTER, settle

_FIELDS = ("chat_template", "chat_template_kwargs", "loss_on", "weight_field")


@dataclass(frozen=True)
class CheckedSet:
    """The name of a training data set, and the report on some of its rows."""

    name: str
    report: Report


def check_rows(config: RunConfig, allowed: AllowedPaths) -> list[CheckedSet]:
    """The report on each training data set of a run. Takes about two seconds.

    Raises:
        ConfigError: a file is not there or not allowed, the chat template is not valid, or rows of this run cannot be checked.
    """
    settled = settle(config, allowed, files=["chat_template"])
    if problems := [*settled.refused, *_invalid(settled.config)]:
        raise ConfigError(problems)
    config = settled.config
    if not template_checking.checks(config):
        raise ConfigError([_why_not(config)])
    named = [item for item in settled.data if item.field == "data"]
    if missing := [item.data for item in named if isinstance(item.data, Problem)]:
        raise ConfigError(missing)
    return [
        CheckedSet(
            item.source.name or item.data.name,
            template_checking.report(config, item.data, item.source.columns or config.columns),
        )
        for item in named
        if not isinstance(item.data, Problem)
    ]


def as_document(checked: list[CheckedSet]) -> dict[str, Any]:
    """The reports as a dictionary for JSON."""
    return {"data_sets": [{"name": one.name, **one.report.as_json()} for one in checked]}


def of_document(document: dict[str, Any]) -> list[CheckedSet]:
    """The reports in such a dictionary."""
    return [CheckedSet(one.pop("name"), Report.from_json(one)) for one in map(dict, document["data_sets"])]


def _invalid(config: RunConfig) -> list[Problem]:
    """What makes the template or its arguments unusable."""
    return [
        Problem(conflict.settings[0], None, conflict.reason, conflict.fix, conflict.changes)
        for conflict in rules.check(config, A_CLUSTER)
        if conflict.blocking and conflict.settings[0] in _FIELDS
    ]


def _why_not(config: RunConfig) -> Problem:
    if config.task not in template_checking.TASKS:
        fitting = ", ".join(task.value for task in template_checking.TASKS)
        message = "does not train answers of a chat, so its rows are not rendered and checked."
        return Problem("task", config.task.value, message, f"Choose {fitting}.")
    fix = "Give a local folder with tokenizer.json. Rows for a hub model are checked by the run itself."
    return Problem("model", config.model, "has no tokenizer in a folder of this machine.", fix)
