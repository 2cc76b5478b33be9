"""LoRA is added to the configured modules, and its parameters are counted."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import make_data, make_model
from trainer_process import train_here

from training.config.run_config import RunConfig
from training.errors import UserError
from training.models.adapters import add_adapter, targeted_modules, untrained_head
from training.models.loading import load_model, load_tokenizer, parameter_counts
from training.run_folder.events import Note

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def config(model: Path | str = "m", **values: Any) -> RunConfig:
    return RunConfig.model_validate({"model": str(model), "data": "d"} | values)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def test_gpt2_with_four_more_tokens_and_rank_8_has_the_known_counts() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.device("meta"):
        gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=50257 + 4))
        model = add_adapter(gpt2, config(lora_r=8))
    assert parameter_counts(model) == (294_912, 124_737_792)
    assert targeted_modules(model) == ["c_attn"]


@pytest.mark.parametrize(
    ("target_modules", "modules"),
    [
        ("auto", ["q_proj", "v_proj"]),
        ("all-linear", ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]),
        ("k_proj, o_proj", ["k_proj", "o_proj"]),
    ],
)
def test_target_modules_by_default_all_linear_and_name(folder: Path, target_modules: str, modules: list[str]) -> None:
    model = add_adapter(load_model(config(folder), torch.float32), config(folder, target_modules=target_modules))
    assert targeted_modules(model) == modules


def test_a_tokenizer_with_more_tokens_resizes_the_embeddings_and_says_so(folder: Path) -> None:
    told: list[str] = []
    known = load_model(config(folder), torch.float32, tell=told.append).get_input_embeddings().num_embeddings
    assert told == []
    model = load_model(config(folder), torch.float32, known + 3, tell=told.append)
    assert model.get_input_embeddings().num_embeddings == known + 3
    [sentence] = told
    assert f"from {known:,} to the tokenizer's {known + 3:,} tokens" in sentence


@pytest.mark.train
def test_resized_embeddings_are_an_event_of_the_run(folder: Path, tmp_path: Path) -> None:
    known = load_model(config(folder), torch.float32).get_input_embeddings().num_embeddings
    added = Path(shutil.copytree(folder, tmp_path / "model"))
    tokenizer = load_tokenizer(config(folder))
    tokenizer.add_tokens(["<one>", "<two>"])
    tokenizer.save_pretrained(added)
    run = train_here(
        tmp_path / "run", added, make_data(tmp_path / "rows.jsonl", 8), max_steps=1, eval_split=0, eval_steps=0
    )
    [note] = [note for note in run.of(Note) if note.message.startswith("Embeddings resized")]
    assert f"from {known:,} to the tokenizer's {known + 2:,} tokens" in note.message


def test_an_unknown_target_module_is_refused_with_the_existing_names(folder: Path) -> None:
    with pytest.raises(UserError) as caught:
        add_adapter(load_model(config(folder), torch.float32), config(folder, target_modules="query"))
    assert caught.value.problem.field == "target_modules"
    assert "q_proj" in caught.value.fix


def test_rslora_and_dora_reach_the_adapter(folder: Path) -> None:
    model = add_adapter(load_model(config(folder), torch.float32), config(folder, use_rslora=True, use_dora=True))
    created = model.peft_config["default"]
    assert created.use_rslora and created.use_dora
    plain = add_adapter(load_model(config(folder), torch.float32), config(folder))
    assert parameter_counts(model)[0] > parameter_counts(plain)[0]


def test_a_tokenizer_without_padding_pads_with_its_end(folder: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(config(folder))
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    assert load_tokenizer(config(tmp_path)).pad_token == "<|end|>"


def test_a_folder_without_a_tokenizer_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="tokenizer"):
        load_tokenizer(config(tmp_path))


def test_a_tokenizer_with_added_tokens_gives_the_model_embeddings_for_them(folder: Path) -> None:
    plain, grown = load_model(config(folder), torch.float32), load_model(config(folder), torch.float32, tokens=300)
    assert grown.get_input_embeddings().num_embeddings == 300
    known = plain.get_input_embeddings().num_embeddings
    assert torch.equal(grown.get_input_embeddings().weight[:known], plain.get_input_embeddings().weight)


@pytest.mark.parametrize(
    ("saved", "sentence"),
    [
        (None, ""),
        (
            "embed_tokens",
            "embed_tokens trains and lm_head does not: the model learns to read new tokens, but not to write them.",
        ),
        ("embed_tokens, lm_head", ""),
        ("lm_head", ""),
    ],
)
def test_embeddings_that_train_without_the_head_are_named(folder: Path, saved: str | None, sentence: str) -> None:
    model = add_adapter(load_model(config(folder), torch.float32), config(folder, modules_to_save=saved))
    assert untrained_head(model).startswith(sentence) and bool(untrained_head(model)) is bool(sentence)
