"""Checks some rows of a hub model's run before the model is loaded; those of a model folder are checked before the run starts."""

from collections.abc import Iterable
from pathlib import Path

from huggingface_hub import try_to_load_from_cache
from transformers import PreTrainedTokenizerBase

from training.config.choices import Task, TemplateCheck
from training.config.run_config import RunConfig
from training.data.rows import data_files
from training.errors import UserError
from training.reports.report import Report
from training.run_folder.events import Note
from training.template_check.check import check
from training.template_check.findings import ERROR, Fault, Finding

RENDERED = (Task.SFT, Task.DPO, Task.KTO, Task.ORPO)
"""The tasks whose rows are rendered whole."""


def check_rows(config: RunConfig, tokenizer: PreTrainedTokenizerBase, report: Report) -> None:
    """Notes the faults of template, tokenizer and settings in some training rows of a hub model.

    Raises:
        UserError: a fault is an error, and `template_check` is strict.
    """
    if config.task not in RENDERED or Path(config.model).is_dir():
        return
    cached = try_to_load_from_cache(config.model, "config.json", revision=config.revision or "main")
    local = config.model_copy(update={"model": str(Path(cached).parent)}) if isinstance(cached, str) else config
    for file in data_files(config.sources, config.columns):
        note_findings(config, check(local, file.path, file.columns, tokenizer).findings, report)


def note_findings(config: RunConfig, findings: Iterable[Finding], report: Report) -> None:
    """Notes faults of rows on the run.

    Raises:
        UserError: a fault is an error, and `template_check` is strict.
    """
    for finding in findings:
        message = f"{finding.sentence} ({finding.fault.value})"
        blocks = finding.severity == ERROR and finding.fault is not Fault.NOT_CHECKED
        if blocks and config.template_check is TemplateCheck.STRICT:
            fix = f"{finding.fix} To train all the same, set template_check to warn."
            raise UserError(finding.setting, None, message, fix)
        report.for_run(Note(message=f"{message} {finding.fix}", level="warning"))
