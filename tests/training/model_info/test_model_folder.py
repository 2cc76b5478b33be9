"""The facts of a model folder, and the errors for a folder without a model."""

import json
from pathlib import Path

import pytest
from tiny import make_model

from training.model_info.config_json import ModelError
from training.model_info.folder import describe_model

pytestmark = pytest.mark.slow  # a real model needs torch


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def test_a_models_facts_are_read_without_loading_it(model: Path) -> None:
    facts = describe_model(str(model))
    assert (facts.architecture, facts.hidden_size, facts.parameters) == ("LlamaForCausalLM", 64, 115_648)
    assert facts.is_local


def test_a_hub_id_is_accepted_unchecked() -> None:
    assert not describe_model("Qwen/Qwen3-0.6B").is_local


def broken(folder: Path, how: str) -> str:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    match how:
        case "no config":
            (folder / "config.json").unlink()
        case "not json":
            (folder / "config.json").write_text("{")
        case "no type":
            (folder / "config.json").write_text("{}")
        case "pickles":
            (folder / "pytorch_model.bin").write_bytes(b"x")
        case "truncated":
            (folder / "model.safetensors").write_bytes(b"\xff\0\0\0\0\0\0\0{")
        case "a file":
            (folder / "model.bin").write_bytes(b"x")
            return str(folder / "model.bin")
        case "a typo":
            return str(folder / "nowhere" / "deep")
    return str(folder)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("no config", "config.json not found"),
        ("not json", "not valid JSON"),
        ("no type", "has no model_type"),
        ("no weights", "has no .safetensors"),
        ("pickles", "does not load pickled weights"),
        ("truncated", "truncated or damaged"),
        ("a file", "this is a file"),
        ("a typo", "no such folder on this machine"),
    ],
)
def test_a_folder_without_a_model_is_refused_with_a_reason_and_a_fix(tmp_path: Path, how: str, words: str) -> None:
    value = broken(tmp_path, how)
    with pytest.raises(ModelError) as caught:
        describe_model(value)
    assert words in str(caught.value) and value in str(caught.value)
    assert caught.value.fix
