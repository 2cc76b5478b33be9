"""What rows say about their answers and nothing reads: marks of loss, judgements, keys of messages; and a missing end token."""

from pathlib import Path
from typing import Any

from chat_models import chat, make_tokenizer, write_model, write_rows
from subtest_table import table

from training.config.run_config import RunConfig
from training.template_check.check import check
from training.template_check.findings import ERROR, WARNING, Finding


def findings(folder: Path, rows: list[dict[str, Any]], tokenizer: Any = None, **settings: Any) -> list[Finding]:
    tokenizer = tokenizer or make_tokenizer("chatml")
    model = write_model(folder / "model", len(tokenizer))
    config = RunConfig.model_validate({"model": str(model), "data": "rows", "method": "lora", **settings})
    return list(check(config, write_rows(folder / "rows.jsonl", rows), None, tokenizer).findings)


def marked(**mark: Any) -> dict[str, Any]:
    row = chat("hi", "bad answer", "again", "good answer")
    row["messages"][1] |= mark
    return row


@table(
    ("mark", "setting"),
    [
        ({"loss_weight": 0.0}, "loss_field"),
        ({"loss": False}, "loss_field"),
        ({"trainable": False}, "loss_field"),
        ({"train": False}, "loss_field"),
    ],
)
def test_a_mark_of_no_loss_that_is_ignored_is_named(tmp_path: Path, mark: dict[str, Any], setting: str) -> None:
    (found,) = findings(tmp_path, [marked(**mark)])
    assert (str(found.fault), found.severity) == ("marks_ignored", WARNING)
    assert found.changes[setting] == next(iter(mark))
    assert findings(tmp_path, [marked(**mark)], **found.changes) == []


def test_graded_marks_are_weights(tmp_path: Path) -> None:
    row = marked(loss_weight=0.0)
    row["messages"][3] |= {"loss_weight": 0.5}
    (found,) = findings(tmp_path, [row])
    assert found.changes == {"weight_field": "loss_weight"}


@table("key", ["channel", "name", "prefix"])
def test_a_key_of_a_message_that_nothing_reads_is_named(tmp_path: Path, key: str) -> None:
    (found,) = findings(tmp_path, [marked(**{key: "memo"}), marked()])
    assert (str(found.fault), found.severity) == ("columns_unused", WARNING)
    assert f"{key} (in 1 rows)" in found.message
    tokenizer = make_tokenizer("chatml")
    tokenizer.chat_template = tokenizer.chat_template.replace("m['content']", f"m['content'] + (m['{key}'] or '')")
    assert findings(tmp_path, [marked(**{key: "memo"}), marked()], tokenizer) == []


@table("column", ["score", "is_correct", "Rating"])
def test_a_column_that_judges_answers_is_named_before_the_start(tmp_path: Path, column: str) -> None:
    (found,) = findings(tmp_path, [chat("hi", "yo") | {column: 0}])
    assert column in found.message and found.severity == WARNING and "kto" in found.fix


def test_a_tokenizer_without_an_end_token_is_told_before_the_start(tmp_path: Path) -> None:
    tokenizer = make_tokenizer("chatml", chat_template=None, eos_token=None)
    found = findings(tmp_path, [{"prompt": "hi", "completion": " yo"}], tokenizer)
    assert [(str(one.fault), one.severity) for one in found] == [("end_token_never_written", ERROR)]
    assert "eos_token" in found[0].fix
