"""The loss is computed on the answer alone, and rows that would teach nothing are found."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny import make_model

from training.config import RunConfig
from training.data import IGNORED, Collator, open_tokens, prompt_of, render, split, tokenize, tokenize_file
from training.failure import DataError
from training.shapes import Example

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Any]:
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("models")
    return {
        template: AutoTokenizer.from_pretrained(make_model(folder / str(template), template=template))
        for template in (True, False)
    }


def config(**values: Any) -> RunConfig:
    return RunConfig.model_validate({"model": "m", "data": "d"} | values)


def trained_text(example: Example, tokenizer: Any, **values: Any) -> str:
    (fitted,) = tokenize([example], tokenizer, config(**values))
    return str(tokenizer.decode([label for label in fitted.cut.labels if label != IGNORED]))


def chat(*turns: str) -> Example:
    roles = ["user", "assistant"] * len(turns)
    return Example(messages=[{"role": role, "content": text} for role, text in zip(roles, turns, strict=False)])


def test_a_chat_trains_every_answer_with_its_end_and_nothing_else(tokenizers: dict[bool, Any]) -> None:
    example = chat("Hi", "Hello", "And?", "Bye")
    assert trained_text(example, tokenizers[True]) == "Hello<|end|>Bye<|end|>"


def test_a_template_that_rewrites_earlier_turns_still_trains_the_answers(tokenizers: dict[bool, Any]) -> None:
    tokenizer = tokenizers[True]
    kept = tokenizer.chat_template
    last_only = kept.replace("{{ m['content'] }}", "{{ m['content'] }}{% if loop.last %}!{% endif %}")
    tokenizer.chat_template = last_only
    try:
        assert trained_text(chat("Hi", "Hello", "And?", "Bye"), tokenizer) == "Hello<|end|>Bye!<|end|>"
    finally:
        tokenizer.chat_template = kept


@pytest.mark.parametrize("template", [True, False])
def test_prompt_and_completion_train_the_completion_and_an_end(tokenizers: dict[bool, Any], template: bool) -> None:
    assert trained_text(Example(prompt="1+1=", answer="2"), tokenizers[template]) == "2<|end|>"


def test_plain_text_trains_all_of_it(tokenizers: dict[bool, Any]) -> None:
    assert trained_text(Example(answer="once upon"), tokenizers[True]) == "once upon<|end|>"


def test_a_chat_without_a_template_gets_headings_and_trains_the_answer(tokenizers: dict[bool, Any]) -> None:
    tokenizer = tokenizers[False]
    assert render(chat("Hi", "Hello"), tokenizer)[0] == "### Instruction:\nHi\n\n### Response:\nHello"
    assert trained_text(chat("Hi", "Hello"), tokenizer) == "Hello<|end|>"


def test_training_on_the_prompt_as_well_is_an_option(tokenizers: dict[bool, Any]) -> None:
    assert trained_text(chat("Hi", "Hello"), tokenizers[True], train_on_prompt=True).startswith("<|user|>Hi")


@pytest.mark.parametrize("template", [True, False])
def test_what_is_asked_is_what_was_seen_up_to_the_answer(tokenizers: dict[bool, Any], template: bool) -> None:
    tokenizer, example = tokenizers[template], chat("Hi", "Hello")
    prompt, answer = prompt_of(example, tokenizer)
    assert render(example, tokenizer)[0].startswith(prompt + answer)


def test_rows_cut_before_their_answer_are_left_out_and_counted(tokenizers: dict[bool, Any], tmp_path: Path) -> None:
    rows = [{"prompt": "x" * length, "completion": "answer"} for length in (2, 5, 30, 40)]
    source, target = tmp_path / "rows.jsonl", tmp_path / "rows.arrow"
    source.write_text("\n".join(json.dumps(row) for row in rows))
    tokenize_file(source, target, tokenizers[True], config(max_length=10), lambda rows: None)
    tokens = open_tokens(target)
    assert (tokens.truncated_rows, tokens.skipped_rows) == (3, 2)
    assert tokens.table["row"].to_pylist() == [0, 1]
    assert max(len(ids) for ids in tokens.table["input_ids"].to_pylist()) == 10


def test_a_file_whose_rows_are_all_too_long_is_refused_and_leaves_nothing(
    tokenizers: dict[bool, Any], tmp_path: Path
) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text(json.dumps({"prompt": "x" * 50, "completion": "y"}))
    with pytest.raises(DataError, match="Raise max_length"):
        tokenize_file(source, tmp_path / "rows.arrow", tokenizers[True], config(max_length=10), lambda rows: None)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_the_split_is_the_same_for_a_seed_and_never_overlaps(tokenizers: dict[bool, Any], tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text("\n".join(json.dumps({"text": f"row {n}"}) for n in range(40)))
    tokenize_file(source, tmp_path / "rows.arrow", tokenizers[True], config(), lambda rows: None)
    table = open_tokens(tmp_path / "rows.arrow").table
    train, held_out = split(table, 0.25, seed=1)
    again, _ = split(table, 10, seed=1)
    assert held_out is not None
    assert (train.num_rows, held_out.num_rows) == (30, 10)
    assert train["row"].to_pylist() == again["row"].to_pylist()
    assert not set(train["row"].to_pylist()) & set(held_out["row"].to_pylist())
    with pytest.raises(DataError, match="Lower eval_split"):
        split(table, 40, seed=1)


def test_a_batch_is_padded_with_what_carries_no_loss() -> None:
    batch = Collator(pad_token_id=9)([{"input_ids": [1, 2], "labels": [IGNORED, 2]}, {"input_ids": [3] * 9, "labels": [3] * 9}])
    assert batch["input_ids"].shape == (2, 16)
    assert batch["attention_mask"].sum(dim=1).tolist() == [2, 9]
    assert batch["input_ids"][0, 2:].unique().tolist() == [9]
    assert batch["labels"][0, 2:].unique().tolist() == [IGNORED]
