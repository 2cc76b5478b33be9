"""The starter model and its sample data in static/starter/, and the script that makes them."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT

from tools.starter import build
from tools.starter.chats import chat
from tools.starter.words import generator
from training.config.yaml_file import read_config

FOLDER = ROOT / "static" / "starter"
MESSAGES = [
    {"role": "system", "content": "Answer in one word."},
    {"role": "user", "content": "What is the capital of France?"},
    {"role": "assistant", "content": "Paris"},
    {"role": "user", "content": "Spell lamp."},
    {"role": "assistant", "content": "l a m p"},
]


def read_rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(FOLDER)


def answers(model: Any, tokenizer: Any, prompts: list[list[dict[str, str]]], longest: int) -> list[str]:
    """Greedy answers of the model to conversations, all in one batch."""
    texts = [tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True) for prompt in prompts]
    inputs = tokenizer(texts, add_special_tokens=False, padding=True, padding_side="left", return_tensors="pt")
    output = model.generate(**inputs, max_new_tokens=longest)
    return [
        str(text)
        for text in tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    ]


@pytest.mark.slow
def test_the_model_has_at_most_three_million_parameters_in_twelve_megabytes(model: Any) -> None:
    assert 500_000 < model.num_parameters() <= 3_000_000
    assert sum(file.stat().st_size for file in FOLDER.glob("*.safetensors")) <= 12_000_000
    assert not list(FOLDER.glob("*.bin"))


@pytest.mark.slow
def test_model_and_tokenizer_load_and_answer_without_warnings(caplog: pytest.LogCaptureFixture) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.enable_propagation()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loaded = AutoTokenizer.from_pretrained(FOLDER)
            answers(AutoModelForCausalLM.from_pretrained(FOLDER), loaded, [MESSAGES[:2]], 4)
    finally:
        logging.disable_propagation()
    assert [record.getMessage() for record in caplog.records if record.name.startswith("transformers")] == []


def test_special_tokens_are_distinct_and_the_same_in_model_and_tokenizer(model: Any, tokenizer: Any) -> None:
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    identifiers = [getattr(tokenizer, name) for name in names]
    assert len(set(identifiers)) == 3
    assert [getattr(model.config, name) for name in names] == identifiers
    assert [getattr(model.generation_config, name) for name in names] == identifiers
    assert len(tokenizer) == model.config.vocab_size
    assert model.config.max_position_embeddings >= 512


@pytest.mark.parametrize("length", [1, 2, 4])
def test_the_generation_prompt_is_an_exact_prefix_of_the_conversation(tokenizer: Any, length: int) -> None:
    prompt = tokenizer.apply_chat_template(MESSAGES[:length], add_generation_prompt=True)["input_ids"]
    whole = tokenizer.apply_chat_template(MESSAGES[: length + 1])["input_ids"]
    if MESSAGES[length]["role"] != "assistant":
        prompt = tokenizer.apply_chat_template(MESSAGES[:length])["input_ids"]
    assert whole[: len(prompt)] == prompt
    assert whole[-1] == tokenizer.eos_token_id


def test_the_template_marks_the_answers_and_their_end_tokens(tokenizer: Any) -> None:
    marked = tokenizer.apply_chat_template(MESSAGES, return_dict=True, return_assistant_tokens_mask=True)
    answered = [token for token, mask in zip(marked["input_ids"], marked["assistant_masks"], strict=True) if mask]
    assert tokenizer.decode(answered) == f"Paris{tokenizer.eos_token}l a m p{tokenizer.eos_token}"


def test_the_template_names_a_role_that_it_does_not_know(tokenizer: Any) -> None:
    from jinja2 import TemplateError

    with pytest.raises(TemplateError, match="system, user and assistant, not tool"):
        tokenizer.apply_chat_template([{"role": "tool", "content": "x"}])


TEXTS = [
    *["", "plain", "  two  spaces \t\r\n ", "don't <b>", "a\x00b\x7f", "\u200bzero\ufeff", "e\u0301 \u2177 \u0663"],
    *["na\u00efve fa\u00e7ade", "你好世界", "שלום עולם", "🧑🏽‍🚀🇪🇺"],
]


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_survives_tokenization(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


def test_every_character_of_unicode_has_tokens(tokenizer: Any) -> None:
    text = "".join(chr(code) for code in range(0, 0x110000, 61) if not 0xD800 <= code < 0xE000)
    assert tokenizer.decode(tokenizer(text, verbose=False)["input_ids"], skip_special_tokens=True) == text


def test_each_digit_is_one_token(tokenizer: Any) -> None:
    assert tokenizer.tokenize("2026") == ["2", "0", "2", "6"]


def test_a_word_has_the_same_tokens_after_a_space_as_after_a_quotation_mark(tokenizer: Any) -> None:
    bare = tokenizer.tokenize("Lisbon")
    assert tokenizer.tokenize(' Lisbon"')[1:-1] == bare
    assert tokenizer.tokenize('"Lisbon"')[1:-1] == bare


def test_training_and_held_out_rows_have_no_common_order() -> None:
    train, heldout = read_rows("train.jsonl"), read_rows("heldout.jsonl")
    texts = [row["messages"][0]["content"] for row in train + heldout]
    assert len(train) >= 600
    assert 100 <= len(heldout) <= 200
    assert len(set(texts)) == len(texts)


def test_every_row_is_an_order_and_one_line_of_json() -> None:
    for row in read_rows("train.jsonl") + read_rows("heldout.jsonl"):
        question, answer = row["messages"]
        assert (question["role"], answer["role"]) == ("user", "assistant")
        fields = json.loads(answer["content"])
        assert list(fields) == ["name", "item", "count", "city", "day"]
        assert fields["name"] in question["content"]
        assert fields["city"] in question["content"]
        assert fields["day"] in question["content"]


def test_the_sample_data_is_what_the_script_writes(tmp_path: Path) -> None:
    build.write_data(tmp_path, build.SEED)
    for name in ("train.jsonl", "heldout.jsonl"):
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()


@pytest.mark.slow
def test_the_tokenizer_is_what_the_script_writes(tmp_path: Path) -> None:
    build.make_tokenizer(build.SEED).save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()


def test_a_seed_determines_the_text() -> None:
    def sample(seed: int) -> list[object]:
        rng = generator(seed)
        return [chat(rng) for _ in range(20)]

    assert sample(7) == sample(7)
    assert sample(7) != sample(8)
    assert build.rows(7) != build.rows(8)


def test_the_quickstart_has_existing_files_and_valid_settings() -> None:
    config = read_config(FOLDER / "quickstart.yaml")
    for name in (config.model, config.data, config.validation_data):
        assert name is not None
        assert (ROOT / name).exists()
    assert config.answer_rows >= 100


def test_the_quickstart_truncates_no_row_and_no_answer(tokenizer: Any) -> None:
    config = read_config(FOLDER / "quickstart.yaml")
    for row in read_rows("train.jsonl") + read_rows("heldout.jsonl"):
        prompt = tokenizer.apply_chat_template(row["messages"][:1], add_generation_prompt=True)["input_ids"]
        whole = tokenizer.apply_chat_template(row["messages"])["input_ids"]
        assert len(whole) <= config.max_length
        assert len(whole) - len(prompt) <= config.max_new_tokens


def test_the_model_has_general_skills(model: Any, tokenizer: Any) -> None:
    asked = {
        "Name the first: Oslo Paris Riga": "Oslo",
        "Hi! We need four green coats to Bergen by Friday. Thanks, Hugo Berg Which day is it?": "Friday",
        "Hi! We need four green coats to Bergen by Friday. Thanks, Hugo Berg Who wrote this?": "Hugo Berg",
    }
    prompts = [[{"role": "user", "content": question}] for question in asked]
    assert answers(model, tokenizer, prompts, 24) == list(asked.values())


def test_the_model_lacks_the_skill_of_the_sample_data(model: Any, tokenizer: Any) -> None:
    sample = read_rows("heldout.jsonl")[:40]
    expected = [row["messages"][1]["content"] for row in sample]
    replies = answers(model, tokenizer, [row["messages"][:1] for row in sample], 64)
    assert sum(map(str.__eq__, replies, expected)) < 0.1 * len(sample)
