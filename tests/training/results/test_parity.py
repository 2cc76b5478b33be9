"""Saved results render and answer as the trained model does; a form that does not is named."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import make_model
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from trainer_process import train_here
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from training.config.run_config import RunConfig
from training.results.parity.reference import Reference
from training.results.parity.verify import verdict, verify

pytestmark = [
    pytest.mark.train,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]
PARITY = {"verify_rows": 3, "max_steps": 4, "eval_split": 4, "eval_steps": 0, "precision": "fp32"}
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 512,
}

LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
    "{{ m['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
QWEN3 = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
    "{{ m['content'] | trim }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def bytes_tokenizer(special: list[str]) -> Tokenizer:
    tokens = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=[]))
    digits = pre_tokenizers.Split(Regex(r"\p{N}{1,3}| ?\p{L}+|\s+"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def sentencepiece_tokenizer(special: list[str]) -> Tokenizer:
    tokens = [*special, *(f"<0x{number:02X}>" for number in range(256)), "▁", *"abcdefghijklmnopqrstuvwxyz0123456789?!"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token=special[0]))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def family(name: str, folder: Path) -> Path:
    """A tiny model in the shape of a family, with its kind of tokenizer and template."""
    kinds: dict[str, tuple[Any, Any, str | None, list[str], Any]] = {
        "llama 3": (LlamaConfig, LlamaForCausalLM, LLAMA3,
                    ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"], bytes_tokenizer),
        "qwen 3": (Qwen3Config, Qwen3ForCausalLM, QWEN3, ["<|endoftext|>", "<|im_end|>", "<|im_start|>"], bytes_tokenizer),
        "gemma 3": (Gemma3TextConfig, Gemma3ForCausalLM, GEMMA, ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"],
                    sentencepiece_tokenizer),
        "gpt 2": (GPT2Config, GPT2LMHeadModel, None, ["<|endoftext|>"], bytes_tokenizer),
    }  # fmt: skip
    config, model, template, special, make = kinds[name]
    backend = make(special)
    end = special[0] if len(special) < 4 else special[1]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=special[0],
        eos_token=end,
        pad_token=special[0],
        extra_special_tokens=special,
    )
    tokenizer.chat_template = template
    torch.manual_seed(0)
    size = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 512} if config is GPT2Config else SMALL
    ends = tokenizer.eos_token_id
    model(config(**size, vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=ends, pad_token_id=0)).save_pretrained(
        folder
    )
    tokenizer.save_pretrained(folder)
    return folder


def chats(file: Path) -> Path:
    rows = [
        {"messages": [{"role": "user", "content": f"say  {n}?"}, {"role": "assistant", "content": f"{n}!"}]}
        for n in range(24)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.mark.parametrize("name", ["llama 3", "qwen 3", "gemma 3", "gpt 2"])
def test_every_form_of_a_family_has_the_prompts_and_answers_of_training(name: str, tmp_path: Path) -> None:
    model, data = family(name, tmp_path / "model"), chats(tmp_path / "chats.jsonl")
    options = {"chat_template_kwargs": "enable_thinking=false"} if name == "qwen 3" else {}
    trained = train_here(tmp_path / "run", model, data, merge_adapter=True, **PARITY, **options)
    found = trained.summary["parity"]
    assert found["equal"], found
    assert found["reference"] == "trained model"
    for form in ("adapter", "merged"):
        assert (found["forms"][form]["rows"], found["forms"][form]["prompt_ids_equal"]) == (3, True)
        assert found["forms"][form]["max_logit_difference"] < 1e-4


def test_a_thinking_block_that_serving_omits_is_found_in_the_first_row(tmp_path: Path) -> None:
    model, data = family("qwen 3", tmp_path / "model"), chats(tmp_path / "chats.jsonl")
    found = train_here(tmp_path / "run", model, data, **PARITY).summary["parity"]
    assert not found["equal"]
    different = found["forms"]["adapter"]["first_difference"]
    assert different["what"] == "prompt"
    assert different["trained"].startswith("<think>")


def test_an_answer_ends_at_the_token_that_the_chat_teaches(tmp_path: Path) -> None:
    """A base model's own end token is another: without a generation configuration the answer would go on."""
    model, data = family("qwen 3", tmp_path / "model"), chats(tmp_path / "chats.jsonl")
    train_here(tmp_path / "run", model, data, **PARITY)
    written = json.loads((tmp_path / "run/adapter/generation_config.json").read_text())
    assert sorted(written["eos_token_id"]) == [0, 1]


@pytest.fixture
def finished(tmp_path: Path) -> tuple[RunConfig, Path, Reference]:
    """A run with its adapter, and its reference."""
    model, data = make_model(tmp_path / "model"), chats(tmp_path / "chats.jsonl")
    run_dir = tmp_path / "run"
    train_here(run_dir, model, data, **PARITY)
    config = RunConfig.model_validate_json((run_dir / "config.json").read_text())
    reference = Reference.read(run_dir)
    assert reference
    return config, run_dir, reference


def test_another_template_and_other_weights_are_found(finished: tuple[RunConfig, Path, Reference]) -> None:
    config, run_dir, reference = finished
    kept = run_dir / "kept"
    shutil.copytree(run_dir / "adapter", kept)
    template = run_dir / "adapter/chat_template.jinja"
    template.write_text(template.read_text().replace("<|user|>", "User: "))
    template.write_text("Be brief. " + template.read_text())
    (form,) = verify(config, run_dir, reference, ["adapter"])
    assert (form["prompt_ids_equal"], form["answers_equal"]) == (False, True)
    assert form["first_difference"]["here"].startswith("Be brief.")
    shutil.rmtree(run_dir / "adapter")
    kept.rename(run_dir / "adapter")
    weights = load_file(run_dir / "adapter/adapter_model.safetensors")
    save_file({name: -8 * value for name, value in weights.items()}, run_dir / "adapter/adapter_model.safetensors")
    (form,) = verify(config, run_dir, reference, ["adapter"])
    assert (form["prompt_ids_equal"], form["answers_equal"]) == (True, False)
    assert form["max_logit_difference"] > 0.1
    assert not verdict(reference, [form])["equal"]


def test_a_form_that_cannot_be_loaded_has_its_reason(finished: tuple[RunConfig, Path, Reference]) -> None:
    config, run_dir, reference = finished
    (run_dir / "adapter/adapter_model.safetensors").unlink()
    (form,) = verify(config, run_dir, reference, ["adapter"])
    assert form["error"]["message"]
    assert not verdict(reference, [form])["equal"]


def test_a_full_fine_tuning_is_compared_as_a_model(tmp_path: Path) -> None:
    model, data = make_model(tmp_path / "model"), chats(tmp_path / "chats.jsonl")
    found = train_here(tmp_path / "run", model, data, method="full", **PARITY).summary["parity"]
    assert (list(found["forms"]), found["equal"]) == (["model"], True)
