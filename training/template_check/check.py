"""Checks what a run trains on: `python -m training.template_check.check` reads JSON (`Asked`) and prints a report as JSON.

The worker runs it in a process with limits on memory and time, since a chat template is a program: it may loop for ever, or write
without end.
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from training.chat.rendering_settings import ChatSettings
from training.chat.template import TemplateLimit
from training.config.choices import LossOn
from training.config.run_config import RunConfig
from training.errors import DataError, UserError
from training.template_check.findings import (
    ERROR,
    WARNING,
    Fault,
    Finding,
    ShownRow,
    ShownToken,
    TemplateReport,
    grouped,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from training.template_check.rendered_rows import EveryRow, SampleRow

SHOWN_ROWS, SHOWN_TOKENS = 3, 1500
_ABOUT_ROLES = ("role", "alternate", "system")


@dataclass(frozen=True)
class Asked:
    """The run's settings, the file with its rows on this machine, and the mapping of its columns."""

    config: Mapping[str, Any]
    file: str
    columns: str | None = None


def check(config: RunConfig, file: Path, columns: str | None, tokenizer: "PreTrainedTokenizerBase") -> TemplateReport:
    """The faults in the rows of `file`, as the run would train on them, and the first rows as tokens.

    Some of the first rows are checked token by token; in the rendering of every row its texts are looked for.
    """
    from training.template_check.gap_findings import gap_findings
    from training.template_check.model_faults import model_findings, model_side
    from training.template_check.rendered_rows import RowSampler, render_every_row, sample
    from training.template_check.row_faults import ROW_CHECKS, Subject

    settings = ChatSettings.of(config)
    side = model_side(config.model, config.model_dump(mode="json"))
    stops = {*side.end_ids, *([tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else [])}
    added = {token for token, entry in tokenizer.added_tokens_decoder.items() if entry.special}
    special = frozenset({*stops, *added, *tokenizer.all_special_ids})
    subject = Subject(tokenizer, settings, frozenset(stops), special, config.max_length)
    sampler, rows, findings = RowSampler(tokenizer, settings), list["SampleRow"](), list[Finding]()
    for number, example in sample(file, columns, settings):
        try:
            if isinstance(example, DataError):
                raise example
            row = sampler.row(number, example)
        except DataError as error:
            if isinstance(error, TemplateLimit):
                return TemplateReport((_unreadable(number, error),), len(rows))
            continue
        rows.append(row)
        findings += [finding for one in ROW_CHECKS for finding in one(row, subject)]
    every = render_every_row(config, file, columns, tokenizer)
    findings += gap_findings(every.gaps.by_gap, {finding.fault for finding in findings})
    findings += [_unreadable(number, error) for number, error in every.unreadable]
    findings += [_unused(every)] if every.unused and not config.task.traits.rewards_samples else []  # rewards get them
    findings += [_unread(every)] if every.keys else []
    findings += [_judging(every, config)] if every.judging and not config.task.traits.samples else []
    findings += _without_end(tokenizer, stops, config)
    findings += model_findings(rows, tokenizer, subject, side)
    if rows and not config.task.traits.samples and not any(any(row.weights[: config.max_length]) for row in rows):
        findings.append(_no_loss(rows, config))
    shown = tuple(_shown(row, subject, config.max_length) for row in rows[:SHOWN_ROWS])
    return TemplateReport(grouped(findings), len(rows), shown, every.rendered, every.complete)


def _unreadable(number: int, error: DataError) -> Finding:
    """A row that cannot be read or rendered; often its roles are not those of the template."""
    about_roles = any(word in error.message.lower() for word in _ABOUT_ROLES) and "line" not in error.fix
    fault = Fault.WRONG_ROLE if about_roles or "role" in error.field else Fault.CANNOT_RENDER
    place = f"{error.field} " if error.field else ""
    return Finding(fault, ERROR, f"{place}{error.message}", error.fix, number)


def _unused(every: "EveryRow") -> Finding:
    names = ", ".join(f"{name} (in {rows:,} rows)" for name, rows in every.unused.most_common(8))
    message = f"Nothing uses the texts of the columns {names}: they are not trained."
    fix = "Map them to a role (columns), or leave them out of the file."
    return Finding(Fault.COLUMNS_UNUSED, WARNING, message, fix, setting="columns")


def _unread(every: "EveryRow") -> Finding:
    names = ", ".join(f"{name} (in {rows:,} rows)" for name, rows in every.keys.most_common(8))
    message = f"Neither Lathe nor the chat template reads the keys {names} of messages: they have no effect."
    fix = "Leave them out, use a chat template that reads them, or name the one that marks loss in loss_field or weight_field."
    return Finding(Fault.COLUMNS_UNUSED, WARNING, message, fix)


def _judging(every: "EveryRow", config: RunConfig) -> Finding:
    """A column that judges the answers, which are all trained alike."""
    ((name, rows), *_) = every.judging.most_common(1)
    message = f"The column {name} (in {rows:,} rows) seems to judge answers, and nothing uses it: bad ones train as good ones."
    fix = "Remove the rows with bad answers, or use task kto with a column label (true or false) or weight_field with a weight."
    return Finding(Fault.COLUMNS_UNUSED, WARNING, message, fix, setting="columns" if config.columns else "data")


def _without_end(tokenizer: "PreTrainedTokenizerBase", stops: set[int], config: RunConfig) -> list[Finding]:
    """A tokenizer without an end token, of a model that names none either."""
    if stops or config.task.traits.has_classes:
        return []
    message = "The tokenizer has no end token: nothing ends an answer, and generation does not stop."
    fix = "Set eos_token in the model's tokenizer_config.json, or eos_token_id in its generation_config.json."
    severity = WARNING if tokenizer.chat_template or config.task.traits.cuts_texts else ERROR
    return [Finding(Fault.END_NEVER_WRITTEN, severity, message, fix, setting="model")]


def _no_loss(rows: list["SampleRow"], config: RunConfig) -> Finding:
    """No row has a token with loss, so the loss is 0 / 0 and cannot fall; with the setting that masks them all."""
    message = f"None of the {len(rows)} checked rows has a token with loss."
    starts = [next(place for place, weight in enumerate(row.weights) if weight) for row in rows if any(row.weights)]
    if starts:
        needed = 2 ** (max(starts) + 1).bit_length()
        setting, changes = "max_length", {"max_length": needed}
        message = f"{message} Their answers begin at token {min(starts) + 1:,} or later, and max_length is {config.max_length:,}."
        fix = f"Set max_length to {needed:,}, or use rows with shorter prompts."
    elif config.loss_on is not LossOn.ALL:
        setting, changes = "loss_on", {"loss_on": LossOn.ALL.value}
        fix = f"Set loss_on to all, or mark turns with loss (loss_on is {config.loss_on.value}, loss_field {config.loss_field})."
    elif config.weight_field:
        setting, changes = "weight_field", {"weight_field": None}
        fix = f"Clear weight_field: the weight in {config.weight_field} is 0 in all of them."
    else:
        setting, changes, fix = "loss_on", {}, "Check that the rows have answers that are not empty."
    return Finding(Fault.NO_LOSS, ERROR, message, fix, rows[0].number, setting=setting, changes=changes)


def _shown(row: "SampleRow", subject: Any, limit: int) -> ShownRow:
    from tokenizers import decoders

    stream = decoders.DecodeStream(skip_special_tokens=False)
    backend = subject.tokenizer.backend_tokenizer
    tokens = tuple(
        ShownToken(token, stream.step(backend, token) or "", weight, place >= limit, token in subject.special_ids)
        for place, (token, weight) in enumerate(zip(row.ids[:SHOWN_TOKENS], row.weights[:SHOWN_TOKENS], strict=True))
    )
    return ShownRow(row.number, len(row.ids), tokens)


def main() -> None:
    # Tokenizers do not need torch; its import takes three seconds and most of the memory limit.
    sys.modules["torch"] = None  # type: ignore[assignment]
    signal.signal(signal.SIGXCPU, _out_of_time)
    asked = Asked(**json.load(sys.stdin))
    try:
        report = _report(asked)
    except UserError as error:
        report = TemplateReport((Finding(Fault.NOT_CHECKED, ERROR, error.problem.sentence, error.fix, setting="data"),))
    except TimeoutError as error:
        fix = "Check the chat template for an endless loop."
        report = TemplateReport((Finding(Fault.CANNOT_RENDER, ERROR, f"The rows cannot be rendered: {error}.", fix),))
    sys.stdout.write(json.dumps(report.as_json()) + "\n")


def _report(asked: Asked) -> TemplateReport:
    from training.chat.tokenizer import load

    config = RunConfig.model_validate(asked.config)
    tokenizer = load(config.model, config.revision, config.chat_template)
    return check(config, Path(asked.file), asked.columns, tokenizer)


def _out_of_time(_number: int, _frame: FrameType | None) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))  # else the signal is sent again each second
    raise TimeoutError("it takes more CPU time than allowed")


if __name__ == "__main__":
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    main()
