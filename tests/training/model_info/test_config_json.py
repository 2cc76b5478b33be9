"""Reading config.json with the names of each model family."""

import json
from pathlib import Path

import pytest

from training.model_info.config_json import Dimensions, ModelError, read_config, read_dimensions
from training.model_info.families import UnknownLayers, read_shape, shape_of

SIZES = {
    "num_attention_heads": 4,
    "hidden_size": 64,
    "intermediate_size": 128,
    "vocab_size": 100,
    "num_hidden_layers": 2,
}
RENAMED = {"n_head": 4, "n_embd": 64, "n_inner": 128, "vocab_size": 100, "n_layer": 2}


def write(folder: Path, text: str) -> Path:
    file = folder / "config.json"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize("values", [SIZES, RENAMED, {"text_config": SIZES, "hidden_size": 8}])
def test_dimensions_and_shape_agree_under_every_name(tmp_path: Path, values: dict[str, object]) -> None:
    file = write(tmp_path, json.dumps(values))
    assert read_dimensions(str(file)) == read_dimensions(str(tmp_path)) == Dimensions(4, 64, 128, 100)
    if "text_config" in values:
        return
    file.write_text(json.dumps(values | {"model_type": "gpt2" if "n_head" in values else "llama"}))
    shape = read_shape(file)
    assert (shape.hidden, shape.vocab, shape.decoder.heads, shape.decoder.intermediate) == (64, 100, 4, 128)


@pytest.mark.parametrize(
    ("text", "message"), [("{", "not valid JSON"), ("[" * 100_000, "not valid JSON"), ("[]", "not a JSON object")]
)
def test_a_file_that_is_not_a_json_object_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_config(write(tmp_path, text))


@pytest.mark.parametrize("path", ["nowhere", "~no-such-user/model", "a\0b", "a" * 5000])
def test_a_path_without_a_config_json_is_refused(path: str) -> None:
    with pytest.raises(ModelError, match=r"config\.json") as caught:
        read_config(path)
    assert caught.value.problem.value == path and caught.value.fix


@pytest.mark.parametrize(
    "values",
    [
        {"model_type": "bart", "is_encoder_decoder": True}, {"model_type": "deepseek_v3"}, {"model_type": "unheard_of"}, {},
        {"model_type": "llama", "text_config": SIZES},
    ],
)  # fmt: skip
def test_layers_that_no_formula_knows_are_not_taken_for_those_of_llama(values: dict[str, object]) -> None:
    with pytest.raises(UnknownLayers, match=r"cannot say how much memory it needs"):
        shape_of(SIZES | values)


def test_a_scoring_model_has_its_head_instead_of_the_language_model_s(tmp_path: Path) -> None:
    values = SIZES | {"model_type": "llama", "tie_word_embeddings": False, "id2label": {"0": "a", "1": "b", "2": "c"}}
    file = write(tmp_path, json.dumps(values))
    text = read_shape(file).parameters
    assert text - read_shape(file, scores=1).parameters == 64 * (100 - 1)
    assert text - read_shape(file, scores=0).parameters == 64 * (100 - 3)


@pytest.mark.parametrize("model_type", ["gpt2", "gpt_neox", "opt"])
def test_a_config_json_without_an_activation_has_that_of_transformers(model_type: str) -> None:
    from transformers import CONFIG_MAPPING

    default = CONFIG_MAPPING[model_type]()
    expected = getattr(default, "activation_function", None) or default.hidden_act
    assert shape_of(SIZES | {"model_type": model_type}).activation == expected
