"""Reading config.json with the names of each model family."""

import json
from pathlib import Path

import pytest

from training.model_info.config_json import ModelError, read_config
from training.model_info.dimensions import Dimensions, read_dimensions
from training.model_info.families import read_shape, shape_of

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


def test_an_encoder_decoder_other_than_t5_is_refused() -> None:
    with pytest.raises(ModelError, match=r"bart.* is an encoder-decoder"):
        shape_of(SIZES | {"model_type": "bart", "is_encoder_decoder": True})
