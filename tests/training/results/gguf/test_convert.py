"""A GGUF file contains the model: read back tensor by tensor, and loaded by transformers' own GGUF reader."""

import json
from pathlib import Path

import gguf
import gguf_families
import pytest
import torch
from safetensors.torch import load_file
from tiny import make_model
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from training.errors import UserError
from training.results.gguf.__main__ import main
from training.results.gguf.convert import convert
from training.results.gguf.split_rules import EACH_DIGIT, THREE_DIGITS, rule_name
from training.results.gguf.vocabulary import portable_template
from training.run_folder.derived import GgufType

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
GROUPED = SMALL | {"num_key_value_heads": 2, "max_position_embeddings": 128}
SHAPES = {
    "GPT2LMHeadModel": ("gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}),
    "LlamaForCausalLM": ("llama", GROUPED | {"tie_word_embeddings": True}),
    "MistralForCausalLM": ("mistral", GROUPED | {"sliding_window": None, "head_dim": 32}),
    "Qwen2ForCausalLM": ("qwen2", GROUPED),
    "Qwen3ForCausalLM": ("qwen3", GROUPED | {"head_dim": 32}),
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's, trained so far that it has merges."""
    folder = make_model(tmp_path_factory.mktemp("tokenizer"))
    tiny = AutoTokenizer.from_pretrained(folder)
    tiny.train_new_from_iterator(["the naïve size of the twelve sizes"] * 4, vocab_size=290).save_pretrained(folder)
    return folder


def make(folder: Path, tokenizer: Path, name: str, dtype: torch.dtype = torch.float32, **changes: object) -> Path:
    """A random model of an architecture, all its parameters other than their defaults."""
    kind, shape = SHAPES[name]
    torch.manual_seed(0)
    text = AutoTokenizer.from_pretrained(str(tokenizer))
    ends = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
    config = AutoConfig.for_model(kind, **(shape | ends | {"vocab_size": len(text) + 3} | changes))
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    text.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", SHAPES)
def test_the_file_computes_what_the_model_computes(tmp_path: Path, tokenizer: Path, name: str) -> None:
    folder = make(tmp_path / "model", tokenizer, name)
    convert(folder, tmp_path / "model.gguf")
    tokens = torch.arange(5, 45)[None]
    with torch.inference_mode():
        model = AutoModelForCausalLM.from_pretrained(folder).eval()
        expected = model(tokens).logits
        config = model.config
        if name == "MistralForCausalLM":  # is Llama's to GGUF
            shape = {
                key: value for key, value in config.to_dict().items() if key not in ("model_type", "architectures")
            }
            config = AutoConfig.for_model("llama", **shape)
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", config=config).eval()
        assert torch.allclose(loaded(tokens).logits, expected, atol=1e-4)
    assert expected.std() > 0.1


def test_the_metadata_is_in_the_keys_of_the_architecture(tmp_path: Path, tokenizer: Path) -> None:
    folder = make(tmp_path / "model", tokenizer, "Qwen3ForCausalLM")
    convert(folder, tmp_path / "model.gguf")
    fields = gguf.GGUFReader(tmp_path / "model.gguf").fields
    facts = {
        name.removeprefix("qwen3."): field.contents() for name, field in fields.items() if name.startswith("qwen3.")
    }
    assert facts == {
        "context_length": 128,
        "embedding_length": 64,
        "block_count": 2,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.layer_norm_rms_epsilon": pytest.approx(1e-6),
        "rope.dimension_count": 32,
        "rope.freq_base": 10000.0,
        "vocab_size": len(AutoTokenizer.from_pretrained(tokenizer)) + 3,
    }
    assert fields["tokenizer.ggml.pre"].contents() == "gpt-2"
    assert fields["tokenizer.ggml.eos_token_id"].contents() == 1


def test_a_bias_of_llama_s_queries_is_reordered_like_its_weights(tmp_path: Path, tokenizer: Path) -> None:
    folder = make(tmp_path / "model", tokenizer, "LlamaForCausalLM", attention_bias=True)
    convert(folder, tmp_path / "model.gguf")
    stored = load_file(folder / "model.safetensors")
    read = {tensor.name: torch.tensor(tensor.data) for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    weight, bias = (stored[f"model.layers.1.self_attn.q_proj.{part}"] for part in ("weight", "bias"))
    for row, value in zip(read["blk.1.attn_q.weight"], read["blk.1.attn_q.bias"], strict=True):
        (place,) = (weight == row).all(dim=1).nonzero().flatten().tolist()
        assert value == bias[place]
    assert read["blk.1.attn_q.bias"][1] == bias[8]  # in a head of 16, the first value of the second half comes second


def test_the_tokenizer_reads_text_as_before(tmp_path: Path, tokenizer: Path) -> None:
    folder = make(tmp_path / "model", tokenizer, "LlamaForCausalLM")
    convert(folder, tmp_path / "model.gguf")
    before = AutoTokenizer.from_pretrained(folder)
    after = AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    for text in ("Twelve o'clock, 12:00!", " naïve  Größe\n\n日本", "<|user|>hi<|end|>"):
        assert after(text, add_special_tokens=False)["input_ids"] == before(text, add_special_tokens=False)["input_ids"]
    assert after.chat_template == before.chat_template
    assert after.eos_token == before.eos_token


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_matrices_keep_their_format_bit_by_bit_and_vectors_are_fp32(
    tmp_path: Path, tokenizer: Path, dtype: torch.dtype
) -> None:
    folder = make(tmp_path / "model", tokenizer, "Qwen2ForCausalLM", dtype)
    convert(folder, tmp_path / "model.gguf")
    stored = load_file(folder / "model.safetensors")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, 2)
    read = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    assert len(read) == len(stored)
    for name, tensor in stored.items():
        result = read[names.get_name(name, try_suffixes=(".weight", ".bias"))]
        expected = tensor if tensor.ndim > 1 else tensor.float()
        assert result.data.tobytes() == expected.contiguous().view(torch.uint8).numpy().tobytes()
        assert list(result.shape) == list(reversed(tensor.shape))


def test_the_split_rules_are_those_of_the_tokenizers() -> None:
    """Each regular expression splits a text as the model that it is named after is known to."""
    import regex

    text = "It's 12345 naïve\n\n  words!"
    words = ["It", "'s", " "], [" naïve", "\n\n", " ", " words", "!"]
    assert regex.findall(THREE_DIGITS, text) == [*words[0], "123", "45", *words[1]]
    assert regex.findall(EACH_DIGIT, text) == [*words[0], *"12345", *words[1]]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("LlamaForCausalLM", {"hidden_act": "relu"}, "activation function relu"),
        ("LlamaForCausalLM", {"vocab_size": 200}, "tokens for 200 embeddings"),
        (
            "LlamaForCausalLM",
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
            "dynamic",
        ),
        ("GPT2LMHeadModel", {"scale_attn_by_inverse_layer_idx": True}, "scales its attention"),
    ],
)
def test_unsupported_models_are_refused(
    tmp_path: Path, tokenizer: Path, name: str, changes: dict[str, object], message: str
) -> None:
    folder = make(tmp_path / "model", tokenizer, name, **changes)
    with pytest.raises(UserError, match=message):
        convert(folder, tmp_path / "model.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"normalizer": {"type": "Lowercase"}}, "splits text by a rule"),
        (
            {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\d"}, "behavior": "Isolated", "invert": False}},
            "splits text",
        ),
    ],
)
def test_a_tokenizer_that_llama_cpp_does_not_have_is_refused(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str], change: dict[str, object], message: str
) -> None:
    folder = make(tmp_path / "model", tokenizer, "LlamaForCausalLM")
    values = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(values | change))
    assert main(folder, tmp_path / "model.gguf") == 1
    assert message in json.loads(capsys.readouterr().out)["problem"]["message"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("name", "written"), [("qwen3", "qwen2"), ("phi-4-mini", "gpt-4o"), ("mistral-nemo", "tekken")]
)
def test_whole_words_before_merges_make_no_difference_if_merges_make_every_token(
    tmp_path: Path, name: str, written: str
) -> None:
    values = json.loads((gguf_families.make(name, tmp_path / "model") / "tokenizer.json").read_text())
    model = values["model"]
    for whole in (True, False):
        assert rule_name(values | {"model": model | {"ignore_merges": whole}}) == written
    unmade = model | {"ignore_merges": written != "tekken", "merges": model["merges"][:-1]}
    with pytest.raises(UserError, match="splits text by a rule"):
        rule_name(values | {"model": unmade})


def test_merges_that_scores_cannot_express_are_refused(tmp_path: Path) -> None:
    folder = gguf_families.make("llama-2", tmp_path / "model")
    file = folder / "tokenizer.json"
    values = json.loads(file.read_text())
    merges = values["model"]["merges"]
    values["model"]["merges"] = [merge for merge in merges if merge != ["t", "h"]]
    file.write_text(json.dumps(values))
    with pytest.raises(UserError, match="does not merge 't' and 'h' to 'th'"):
        convert(folder, tmp_path / "model.gguf")


def test_q8_0_is_made_without_llama_cpp(tmp_path: Path) -> None:
    folder = gguf_families.make("llama-3.2", tmp_path / "model")
    convert(folder, tmp_path / "model.gguf", GgufType.Q8_0)
    stored = load_file(folder / "model.safetensors")
    read = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    tensor = read["blk.0.ffn_up.weight"]
    assert tensor.tensor_type is gguf.GGMLQuantizationType.Q8_0
    assert list(tensor.shape) == [256, 512]
    values = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type))
    expected = stored["model.layers.0.mlp.up_proj.weight"]
    assert (values - expected).abs().max() <= expected.abs().max() / 127
    assert read["blk.0.attn_norm.weight"].tensor_type is gguf.GGMLQuantizationType.F32


def test_the_tag_generation_becomes_one_that_every_program_knows() -> None:
    template = "{%- if a %}x{%- generation -%} y {% endgeneration %} z{% endif %}"
    assert portable_template(template) == "{%- if a %}x{%- if true -%} y {% endif %} z{% endif %}"
