"""Models whose attention several processes cannot share are refused before training."""

from typing import Any

import pytest
from transformers import AutoModelForCausalLM, Gemma2Config, GPT2Config, LlamaConfig, MixtralConfig

from training.config.run_config import RunConfig
from training.errors import UserError
from training.ranks.sequence_parallel import prepare_attention

pytestmark = pytest.mark.slow
SMALL: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 8}
SHARED = RunConfig.model_validate(
    {"model": "m", "data": "d", "sequence_parallel_size": 2, "num_processes": 2, "strategy": "zero2"}
)


@pytest.mark.parametrize(
    ("architecture", "attention", "reason"),
    [
        (LlamaConfig(**SMALL | {"num_attention_heads": 1}), "sdpa", "does not divide the model's 1 attention heads"),
        (Gemma2Config(**SMALL, head_dim=4), "eager", "this model computes its attention with eager"),
        (GPT2Config(n_embd=16, n_layer=1, n_head=4, vocab_size=8), "sdpa", "models of the type gpt2"),
    ],
)
def test_a_model_whose_attention_cannot_be_shared_is_refused(architecture: Any, attention: str, reason: str) -> None:
    model = AutoModelForCausalLM.from_config(architecture, attn_implementation=attention)
    prepare_attention(model, RunConfig(model="m", data="d"))
    with pytest.raises(UserError, match=reason):
        prepare_attention(model, SHARED)


def test_a_head_without_a_size_of_its_own_gets_the_default() -> None:
    model = AutoModelForCausalLM.from_config(MixtralConfig(**SMALL, head_dim=None), attn_implementation="sdpa")
    prepare_attention(model, SHARED)
    assert model.config.head_dim == 4
