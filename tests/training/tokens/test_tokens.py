"""Loss only on the answer, and detection of rows without loss tokens."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import make_model

from training.batches.collators import Collator
from training.batches.views import IGNORED, TokenView
from training.chat.rendering_settings import ChatSettings
from training.data.example import Example
from training.errors import DataError
from training.tokens.encoding import Encoder
from training.tokens.groups import near_groups
from training.tokens.make_store import find_or_make, make_store
from training.tokens.rendering import Renderer
from training.tokens.store import VERSION, TokenStore, making_folder, open_store

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Any]:
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("models")
    return {
        template: AutoTokenizer.from_pretrained(make_model(folder / str(template), template=template))
        for template in (True, False)
    }


def trained_text(example: Example, tokenizer: Any, renderer: Renderer | None = None) -> str:
    encoder = Encoder(tokenizer)
    rendered = [(renderer or Renderer(tokenizer)).render(example)]
    row = encoder.collect(rendered, encoder.encode(rendered))
    return str(tokenizer.decode([token for _, first, end in row.spans for token in row.tokens[first:end]]))


def chat(*turns: str) -> Example:
    roles = ["user", "assistant"] * len(turns)
    return Example(messages=[{"role": role, "content": text} for role, text in zip(roles, turns, strict=False)])


def store(folder: Path, rows: list[dict[str, Any]], tokenizer: Any) -> TokenStore:
    source = folder / "rows.jsonl"
    source.write_text("\n".join(json.dumps(row) for row in rows))
    make_store(source, folder / "store", tokenizer, None, lambda rows: None)
    return open_store(folder / "store")


def test_a_chat_has_loss_on_answers_and_their_end_tokens_only(tokenizers: dict[bool, Any]) -> None:
    example = chat("Hi", "Hello", "And?", "Bye")
    assert trained_text(example, tokenizers[True]) == "Hello<|end|>Bye<|end|>"


def test_a_chat_has_the_same_labels_with_and_without_a_cached_template_frame(tokenizers: dict[bool, Any]) -> None:
    renderer = Renderer(tokenizers[True])
    examples = [
        chat("Hi", "Hello", "And?", "Bye"),
        chat("<|assistant|>yes<|end|>", "yes", "so?", "yes"),
        chat("a", "b", "c", ""),
        chat("a", " padded ", "b", "b"),
    ]
    for example in [*examples, *examples]:
        assert renderer.render(example) == Renderer(tokenizers[True]).render(example)


def test_answers_have_loss_with_a_template_that_rewrites_earlier_turns(tokenizers: dict[bool, Any]) -> None:
    tokenizer = tokenizers[True]
    original = tokenizer.chat_template
    last_only = original.replace("{{ m['content'] }}", "{{ m['content'] }}{% if loop.last %}!{% endif %}")
    tokenizer.chat_template = last_only
    try:
        assert trained_text(chat("Hi", "Hello", "And?", "Bye"), tokenizer) == "Hello<|end|>Bye!<|end|>"
    finally:
        tokenizer.chat_template = original


THINKING = """{%- set state = namespace(last=-1) -%}
{%- for m in messages %}{% if m.role == 'user' %}{% set state.last = loop.index0 %}{% endif %}{% endfor -%}
{%- for m in messages -%}
{{ '<|' + m.role + '|>' }}
{%- if m.role == 'assistant' and loop.index0 > state.last %}
{{- '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' }}
{%- endif %}
{{- m.content + '<|end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|assistant|>' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}
{%- endif -%}"""
"""Like Qwen3's: a thinking block in the last turn alone, empty where there is no thought, and a line break behind each turn."""


@pytest.fixture
def thinking(tmp_path: Path) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(make_model(tmp_path / "thinking"))
    tokenizer.chat_template = THINKING
    return tokenizer


@pytest.mark.parametrize("arguments", [None, "enable_thinking=false"])
def test_text_of_the_template_has_no_loss_in_any_turn(thinking: Any, arguments: str | None) -> None:
    renderer = Renderer(thinking, ChatSettings(arguments=arguments))
    for example in (chat("Hi", "Hello"), chat("Hi", "Hello", "And?", "Bye"), chat("Hi", "Hello", "And?", "Bye")):
        answers = [message["content"] for message in example.messages or [] if message["role"] == "assistant"]
        assert trained_text(example, thinking, renderer) == "".join(f"{answer}<|end|>" for answer in answers)


def test_thinking_text_of_the_row_has_loss(thinking: Any) -> None:
    example = Example(
        messages=[
            {"role": "user", "content": "1+1?"},
            {"role": "assistant", "content": "2", "reasoning_content": "add"},
        ]
    )
    assert trained_text(example, thinking) == "<think>\nadd\n</think>\n\n2<|end|>"


def test_an_answer_quoted_in_the_question_is_located_after_its_heading(thinking: Any) -> None:
    example = chat("Say yes", "yes", "Say no, not yes", "no")
    rendered = Renderer(thinking).render(example)
    assert [rendered.text[slice(*span)] for span in rendered.spans] == ["yes<|end|>", "no<|end|>"]
    assert rendered.text[: rendered.spans[0][0]].endswith("<|assistant|>")


@pytest.mark.parametrize("arguments", [None, "enable_thinking=false"])
def test_a_question_is_the_exact_training_text_before_the_answer(thinking: Any, arguments: str | None) -> None:
    renderer, example = Renderer(thinking, ChatSettings(arguments=arguments)), chat("Hi", "Hello", "And?", "Bye")
    rendered = renderer.render(example)
    assert renderer.question(example) == (rendered.text[: rendered.spans[-1][0]], "Bye")


@pytest.mark.parametrize("template", [True, False])
def test_prompt_and_completion_have_loss_on_completion_and_end_token(
    tokenizers: dict[bool, Any], template: bool
) -> None:
    assert trained_text(Example(prompt="1+1=", answer="2"), tokenizers[template]) == "2<|end|>"


def test_an_end_token_added_by_the_tokenizer_has_loss(tmp_path: Path) -> None:
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(make_model(tmp_path / "model", template=False))
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|user|> $A <|end|>", special_tokens=[("<|user|>", 3), ("<|end|>", 1)]
    )
    assert trained_text(Example(prompt="1+1=", answer="2"), tokenizer) == "2<|end|>"


def test_characters_of_several_tokens_have_loss_on_all_tokens(tokenizers: dict[bool, Any]) -> None:
    assert trained_text(Example(prompt="日本 ", answer="語é"), tokenizers[True]) == "語é<|end|>"
    assert trained_text(chat("日", "本語", "é", "ü"), tokenizers[True]) == "本語<|end|>ü<|end|>"


def test_plain_text_has_loss_on_all_tokens(tokenizers: dict[bool, Any]) -> None:
    assert trained_text(Example(answer="once upon"), tokenizers[True]) == "once upon<|end|>"


def test_a_chat_without_a_template_gets_headings_and_loss_on_the_answer(tokenizers: dict[bool, Any]) -> None:
    tokenizer = tokenizers[False]
    assert Renderer(tokenizer).render(chat("Hi", "Hello")).text == "### Instruction:\nHi\n\n### Response:\nHello"
    assert trained_text(chat("Hi", "Hello"), tokenizer) == "Hello<|end|>"


def test_loss_on_the_prompt_is_an_option(tokenizers: dict[bool, Any], tmp_path: Path) -> None:
    tokens = store(tmp_path, [{"prompt": "ask ", "completion": "say"}], tokenizers[True])
    (every,) = (TokenView(tokens, np.array([0]), 100, train_on_prompt=True)[0],)
    assert tokenizers[True].decode(every["labels"]) == "ask say<|end|>"
    assert tokens.first_trained_with(train_on_prompt=True).tolist() == [1]
    assert tokens.first_trained.tolist() == [4]


@pytest.mark.parametrize("template", [True, False])
def test_the_question_equals_the_tokens_before_the_answer(tokenizers: dict[bool, Any], template: bool) -> None:
    renderer, example = Renderer(tokenizers[template]), chat("Hi", "Hello")
    prompt, answer = renderer.question(example)
    assert renderer.render(example).text.startswith(prompt + answer)


def test_a_view_truncates_rows_and_labels_the_answer(tokenizers: dict[bool, Any], tmp_path: Path) -> None:
    tokens = store(
        tmp_path, [{"prompt": "x" * length, "completion": "answer"} for length in (2, 5, 30)], tokenizers[True]
    )
    assert tokens.lengths.tolist() == [9, 12, 37]
    row = TokenView(tokens, np.array([1, 2]), 8, train_on_prompt=False)[0]
    assert tokenizers[True].decode(row["input_ids"]) == "xxxxxans"
    assert row["labels"].tolist() == [IGNORED] * 5 + row["input_ids"][5:].tolist()


def test_rows_with_an_empty_answer_have_no_tokens_and_keep_their_index(
    tokenizers: dict[bool, Any], tmp_path: Path
) -> None:
    rows = [{"prompt": "a", "completion": "b"}, {"prompt": "c", "completion": " "}, {"prompt": "d", "completion": "e"}]
    tokens = store(tmp_path, rows, tokenizers[True])
    assert tokens.lengths.tolist() == [3, 0, 3]
    assert tokenizers[True].decode(tokens.row(2)[0]) == "de<|end|>"
    assert (tokens.facts["empty_rows"], tokens.facts["empty_examples"]) == (1, [1])


def test_tokens_per_script_are_counted_and_end_tokens_are_not_unknown(
    tokenizers: dict[bool, Any], tmp_path: Path
) -> None:
    tokenizer = tokenizers[False]
    tokenizer.unk_token = tokenizer.eos_token
    try:
        tokens = store(tmp_path, [{"text": "plain"}, {"text": "日本"}, {"text": "words"}], tokenizer)
    finally:
        tokenizer.unk_token = None
    latin, han = tokens.facts["scripts"]
    assert (latin["script"], latin["rows"], latin["tokens_per_character"]) == ("Latin", 2, 12 / 10)
    assert (han["script"], han["characters"], han["tokens_per_character"]) == ("Han", 2, 7 / 2)
    assert latin["unknown_tokens"] == han["unknown_tokens"] == 0


def test_a_template_error_names_the_row_and_leaves_no_store(tokenizers: dict[bool, Any], tmp_path: Path) -> None:
    tokenizer = tokenizers[True]
    original, tokenizer.chat_template = tokenizer.chat_template, "{{ messages[1]['content'] + 1 }}"
    try:
        with pytest.raises(DataError, match=r"row 1.*line 1 of the template.*Change line 1"):
            store(tmp_path, [{"messages": chat("a", "b").messages}], tokenizer)
    finally:
        tokenizer.chat_template = original
    assert not making_folder(tmp_path / "store").exists()
    assert not (tmp_path / "store").exists()


def test_padding_has_no_loss() -> None:
    short, long = np.array([1, 2], np.int32), np.full(9, 3, np.int32)
    labels = np.array([IGNORED, 2], np.int32)
    batch = Collator(pad_token_id=9)([{"input_ids": short, "labels": labels}, {"input_ids": long, "labels": long}])
    assert batch["input_ids"].shape == (2, 16)
    assert batch["attention_mask"].sum(dim=1).tolist() == [2, 9]
    assert batch["input_ids"][0, 2:].unique().tolist() == [9]
    assert batch["labels"][0, 2:].unique().tolist() == [IGNORED]


def test_what_the_template_drops_is_counted_with_the_first_row(tokenizers: dict[bool, Any], tmp_path: Path) -> None:
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    turns = [[{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2", **more}] for more in (
        {}, {"tool_calls": [call]}, {"reasoning_content": "I add."}, {"tool_calls": [call]}
    )]  # fmt: skip
    gaps = store(tmp_path, [{"messages": messages} for messages in turns], tokenizers[True]).facts["gaps"]
    assert {gap: (count["rows"], count["first"]) for gap, count in gaps.items()} == {
        "tool calls": (2, 2),
        "reasoning": (1, 3),
    }


LAYOUT = {"tokens.i32", "ends.i64", "spans.i32", "first_trained.i32", "hashes.u64", "groups.i32", "tokenizer.json"}


def test_a_store_that_an_earlier_version_wrote_without_the_groups_of_its_rows_is_made_again(
    tokenizers: dict[bool, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "rows.jsonl"
    rows = (
        "Please name the capital city of France.",
        "Please name the capital city of Frence.",
        "Count to three, slowly.",
    )
    source.write_text("".join(json.dumps({"prompt": row, "completion": "yes"}) + "\n" for row in rows))
    args = (source, tmp_path / "stores", tokenizers[True], "model", None, None, lambda *_: None)
    with monkeypatch.context() as before:
        before.setattr("training.tokens.store.VERSION", 4)
        old = find_or_make(*args)
    for name in ("groups.i32", "tokenizer.json"):
        (old.folder / name).unlink()
        del old.facts["bytes"][name]
    (old.folder / "facts.json").write_text(json.dumps(old.facts))
    assert near_groups(find_or_make(*args)).tolist() == [0, 0, 2]


def test_a_new_layout_of_stores_is_a_new_version(tokenizers: dict[bool, Any], tmp_path: Path) -> None:
    found = store(tmp_path, [{"prompt": "hello", "completion": "world"}], tokenizers[True])
    files = {path.name for path in found.folder.iterdir()}
    assert (VERSION, files) == (5, LAYOUT | {"facts.json"}), (
        "raise VERSION, so that stores of the old layout are made again"
    )
    assert set(found.facts["bytes"]) == LAYOUT


@pytest.mark.parametrize("damaged", sorted(LAYOUT | {"facts.json"}))
def test_a_store_that_a_disk_has_damaged_is_made_again(
    tokenizers: dict[bool, Any], tmp_path: Path, damaged: str
) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text(json.dumps({"prompt": "hello", "completion": "world"}))
    args = (source, tmp_path / "stores", tokenizers[True], "model", None, None, lambda *_: None)
    made = find_or_make(*args)
    tokens = made.row(0)[0].tolist()
    os.truncate(made.folder / damaged, 3)
    with pytest.raises(FileNotFoundError):
        open_store(made.folder)
    assert find_or_make(*args).row(0)[0].tolist() == tokens
