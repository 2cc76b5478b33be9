"""What vLLM cannot load as it was trained, by the files of adapters and the base model's configuration."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import save_file
from subtest_table import table

from training.vllm.limits import Models, NotLoaded, check, max_rank, refusal

LORA = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], "bias": "none"}
MATRICES = ("model.layers.0.self_attn.q_proj.lora_A.weight", "model.layers.0.self_attn.q_proj.lora_B.weight")


def adapter(folder, *tensors, **settings):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(LORA | settings))
    found = {f"base_model.model.{name}": np.zeros(1, np.float32) for name in tensors or MATRICES}
    save_file(found, folder / "adapter_model.safetensors")
    return folder


def base(**changes):
    text = SimpleNamespace(vocab_size=100)
    return SimpleNamespace(**({"is_encoder_decoder": False, "get_text_config": lambda: text} | changes))


def test_an_adapter_of_lora_s_matrices_alone_is_loaded(tmp_path):
    plain = {"use_rslora": True, "modules_to_save": None, "rank_pattern": {}, "init_lora_weights": True}
    assert refusal(adapter(tmp_path / "one", **plain)) == ""
    models = Models("m", adapters={"one": tmp_path / "one", "two": adapter(tmp_path / "two", r=33)})
    check(models, base(), 100)
    assert models.rank == 64


@table(
    ("settings", "tensors", "words"),
    [
        ({"peft_type": "IA3"}, MATRICES, "is of the method IA3"),
        ({"peft_type": "PROMPT_TUNING"}, MATRICES, "is of the method PROMPT_TUNING"),
        ({"use_dora": True}, MATRICES, "uses DoRA"),
        ({"modules_to_save": ["lm_head"]}, MATRICES, "trains whole modules (modules_to_save)"),
        ({"bias": "lora_only"}, MATRICES, "trains biases"),
        ({"r": 1024}, MATRICES, "has rank 1024; the largest is 512"),
        ({"rank_pattern": {"q_proj": 4}}, MATRICES, "modules of different ranks"),
        ({"init_lora_weights": "pissa_niter_4"}, MATRICES, "base weights that pissa_niter_4 changed"),
        (
            {},
            (*MATRICES, "model.embed_tokens.weight"),
            "more than LoRA's matrices: base_model.model.model.embed",
        ),
    ],
)
def test_what_vllm_would_refuse_or_ignore_is_refused_with_the_reason(tmp_path, settings, tensors, words):
    folder = adapter(tmp_path / "an adapter", *tensors, **settings)
    assert words in refusal(folder)
    with pytest.raises(NotLoaded, match="the adapter"):
        check(Models("m", adapters={"one": folder}), base(), 100)


@table(
    ("models", "config", "tokens", "words"),
    [
        (Models("m", quantized=True), base(), 100, "quantized by bitsandbytes"),
        (Models("m"), base(is_encoder_decoder=True), 100, "encoder-decoder"),
        (Models("m"), base(), 101, "tokens that were added"),
    ],
)
def test_a_base_model_that_vllm_cannot_load_as_it_was_trained_is_refused(models, config, tokens, words):
    with pytest.raises(NotLoaded, match=words):
        check(models, config, tokens)


def test_the_maximum_rank_is_the_next_that_vllm_has():
    assert [max_rank(rank) for rank in (1, 8, 9, 64, 300, 512)] == [8, 8, 16, 64, 320, 512]
