"""Files of a model that an account may have sent, such as those of a restored run, cost the web server no memory."""

import json
import re
import shutil
import struct
from pathlib import Path

import pytest

from training.config.run_config import RunConfig
from training.model_info.config_json import ModelError, read_config
from training.model_info.folder import tensor_shapes
from training.tokens.store import tokenizer_fingerprint
from worker.forecasts import shapes
from worker.runs import checks
from worker.runs.settle import settle
from worker.settings import ROOT

MOST_MEMORY = 100 * 2**20
STARTER = ROOT / "static" / "starter"


def status(name):
    return int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024


@pytest.fixture
def teacher(tmp_path):
    """A copy of the starter model."""
    return shutil.copytree(STARTER, tmp_path / "teacher")


def growth(action):
    """The most memory that an action takes."""
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    action()
    return status("VmHWM") - before


def test_a_tokenizer_is_compared_in_a_process_of_its_own(home, teacher):
    config = RunConfig(model="static/starter", data="none", task="distill", teacher=str(teacher))
    assert list(checks.teacher_problems(settle(config))) == []
    tokenizer = json.loads((teacher / "tokenizer.json").read_text())
    first = min(tokenizer["model"]["vocab"])
    tokenizer["model"]["vocab"][first] = 999_999
    (teacher / "tokenizer.json").write_text(json.dumps(tokenizer))
    (problem,) = checks.teacher_problems(settle(config))
    assert "has another tokenizer: 1 of" in problem.message
    (teacher / "tokenizer.json").write_text("[" + "[]," * 3_000_000 + "[]]")
    assert growth(lambda: list(checks.teacher_problems(settle(config)))) < MOST_MEMORY


def test_a_safetensors_header_of_many_values_is_refused_unparsed(teacher):
    header = ("[" + "[]," * 3_000_000 + "[]]").encode()
    (teacher / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)

    def read():
        with pytest.raises(ValueError, match="more than 700,000 values"):
            tensor_shapes(teacher)

    assert growth(read) < MOST_MEMORY


TENSOR = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


def write_header(folder, header):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * 8)


@pytest.mark.parametrize(
    "header",
    [
        [],
        {"a": 1},
        {"a": {"dtype": "F32"}},
        {"a": TENSOR | {"shape": "x"}},
        {"a": TENSOR | {"shape": [-1]}},
        {"a": TENSOR | {"shape": [True]}, "b": 1},
        {"a": TENSOR | {"shape": [2**40, 2**40]}},
        {"a": TENSOR | {"shape": [10**300] * 2000}},
        {"a": TENSOR | {"shape": [1] * 100_000}},
        {"a": TENSOR | {"data_offsets": None}},
        {"a": TENSOR | {"data_offsets": [0, "4"]}},
        {"a": TENSOR | {"data_offsets": [-5, -1]}},
        {"a": TENSOR | {"data_offsets": [8, 4]}},
        {"a": TENSOR | {"data_offsets": [0, 10**400]}},
        {"a": TENSOR | {"data_offsets": [0, 400]}},
        b'{"a":' * 200_000,
    ],
)
def test_a_safetensors_header_that_no_tensor_has_is_a_damaged_file(home, teacher, header):
    """Numbers without a bound took half a minute to multiply, and what is no number ended the request with an error."""
    write_header(teacher, header)
    (problem,) = checks.model_problems(settle(RunConfig(model=str(teacher), data="none")))
    assert problem.message == "a .safetensors file is truncated or damaged."


def test_counting_the_values_of_a_header_takes_no_memory(teacher):
    entries = ",".join(f'"t{number}":{json.dumps(TENSOR)}' for number in range(200_000))
    write_header(teacher, ("{" + entries + "}").encode())

    def read():
        with pytest.raises(ValueError, match="more than 700,000 values"):
            tensor_shapes(teacher)

    assert growth(read) < MOST_MEMORY


def test_an_index_of_many_files_is_compared_with_one_list_of_the_folder(home, teacher, monkeypatch):
    weights = {f"t{number}": f"f{number}.safetensors" for number in range(20_000)}
    (teacher / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    asked = []
    is_file = Path.is_file
    monkeypatch.setattr(Path, "is_file", lambda path: asked.append(path) or is_file(path))
    (problem,) = checks.model_problems(settle(RunConfig(model=str(teacher), data="none")))
    assert "lacks f0.safetensors and 19999 more files" in problem.message
    assert len(asked) < 100


def test_an_index_that_is_too_long_to_be_parsed_at_once_is_not_compared(home, teacher):
    names = ",".join(f'"t{number}":"f.safetensors"' for number in range(300_000))
    (teacher / "model.safetensors.index.json").write_text('{"weight_map":{' + names + "}}")
    assert growth(lambda: list(checks.model_problems(settle(RunConfig(model=str(teacher), data="none"))))) < 2**25


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt", "x.model", "chat_template.jinja"])
def test_a_long_file_of_a_tokenizer_is_hashed_in_blocks(teacher, name):
    before = tokenizer_fingerprint(str(teacher))
    (teacher / name).write_bytes(b"a" * 100 * 2**20)
    assert growth(lambda: tokenizer_fingerprint(str(teacher))) < 2**25
    assert tokenizer_fingerprint(str(teacher)) != before


def test_the_fingerprint_of_a_tokenizer_reads_no_more_than_its_limit(teacher, monkeypatch):
    monkeypatch.setattr("training.tokens.store._MOST_HASHED", 10)
    (teacher / "vocab.txt").write_text("a" * 10 + "b")
    shown = tokenizer_fingerprint(str(teacher))
    (teacher / "vocab.txt").write_text("a" * 10 + "c")
    assert tokenizer_fingerprint(str(teacher)) == shown
    (teacher / "vocab.txt").write_text("a" * 10)
    assert tokenizer_fingerprint(str(teacher)) != shown


@pytest.mark.parametrize("values", ["[]," * 5_000_000 + "[]", "1.5," * 3_900_000 + "1", "[" * 100_000])
def test_a_config_of_many_values_is_refused_unparsed(teacher, values):
    (teacher / "config.json").write_text('{"model_type": "llama", "x": [' + values + "]}")

    def read():
        with pytest.raises(ModelError, match=r"many levels|more than 200,000 values"):
            read_config(teacher)

    assert growth(read) < MOST_MEMORY


SIZES = (
    "head_dim", "hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "num_key_value_heads", "vocab_size",
    "max_position_embeddings",
)  # fmt: skip


@pytest.mark.parametrize("number", ["1" + "0" * 4000, "1e400", "-1e400", "NaN", "1" + "0" * 20])
def test_a_size_in_a_config_that_no_model_has_counts_as_missing(home, teacher, number):
    """Numbers without a bound ended forecasts with an error of the server."""
    values = json.loads((teacher / "config.json").read_text())
    for name in SIZES:
        others = json.dumps({key: value for key, value in values.items() if key != name})
        (teacher / "config.json").write_text(f'{others[:-1]}, "{name}": {number}}}')
        assert name not in read_config(teacher)
        try:
            shapes.shape_at(str(teacher))
        except ModelError as error:
            assert f"lacks '{name}'" in str(error)
