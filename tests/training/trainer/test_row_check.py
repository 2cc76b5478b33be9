"""Rows of a hub model, which no page can check, are checked by the run before it loads the model."""

from pathlib import Path

import pytest
from chat_models import LLAMA3, chat, make_tokenizer, write_rows

from training.config.run_config import RunConfig
from training.errors import UserError
from training.reports.report import Report
from training.run_folder.events import Note, decode
from training.trainer.data_notes import check_rows


def notes(tmp_path: Path, template: str, **settings: str) -> list[str]:
    """The warnings of a check of one row with a template."""
    rows = write_rows(tmp_path / "rows.jsonl", [chat("2+2?", "4")])
    config = RunConfig.model_validate({"model": "owner/model", "data": str(rows), "method": "lora", **settings})
    tokenizer = make_tokenizer("llama3", chat_template=template)
    check_rows(config, tokenizer, Report(tmp_path, rank=0))
    file = tmp_path / "events.jsonl"
    events = [decode(line) for line in file.read_bytes().splitlines(keepends=True)] if file.exists() else []
    return [event.message for event in events if isinstance(event, Note)]


def test_a_fault_ends_the_run_or_is_noted(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="two <s>") as caught:
        notes(tmp_path, "{{ bos_token }}" + LLAMA3)
    assert caught.value.problem.field == "chat_template" and "template_check to warn" in caught.value.fix
    (warning,) = notes(tmp_path, "{{ bos_token }}" + LLAMA3, template_check="warn")
    assert "doubled_bos" in warning


def test_a_healthy_row_is_not_mentioned(tmp_path: Path) -> None:
    assert notes(tmp_path, LLAMA3) == []
