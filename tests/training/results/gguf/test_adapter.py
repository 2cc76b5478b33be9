"""A LoRA adapter as GGUF computes in llama.cpp what it computes in PEFT."""

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf_families import make
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from training.errors import UserError
from training.results.gguf.adapter import convert_adapter
from training.results.gguf.convert import convert

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]
TOKENS = torch.randint(10, 300, (48,), generator=torch.Generator().manual_seed(0)).tolist()
LLAMA_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj"]


def adapted(folder: Path, name: str, **settings: Any) -> Any:
    """A model with a random adapter, saved in `folder`/adapter; the model is in `folder`/model."""
    make(name, folder / "model")
    base = AutoModelForCausalLM.from_pretrained(str(folder / "model"))
    torch.manual_seed(2)
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **settings))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder / "adapter")
    return model.eval()


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("llama-3.2", {"r": 8, "lora_alpha": 16, "target_modules": LLAMA_TARGETS}),
        ("qwen3", {"r": 4, "lora_alpha": 8, "target_modules": LLAMA_TARGETS, "use_rslora": True}),
        (
            "mistral-v0.3",
            {
                "r": 8,
                "lora_alpha": 8,
                "target_modules": LLAMA_TARGETS,
                "rank_pattern": {"k_proj": 2},
                "alpha_pattern": {"q_proj": 64},
            },
        ),
        ("phi-3", {"r": 8, "lora_alpha": 16, "target_modules": ["qkv_proj", "gate_up_proj", "o_proj"]}),
        ("gpt2", {"r": 8, "lora_alpha": 16, "target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True}),
        ("gemma3", {"r": 8, "lora_alpha": 16, "target_modules": LLAMA_TARGETS}),
    ],
)
def test_logits_are_those_of_peft(tmp_path: Path, name: str, settings: dict[str, Any]) -> None:
    pytest.importorskip("llama_cpp", reason="llama.cpp is not installed (the extra llama)", exc_type=ImportError)
    from training.results.gguf.llama import LlamaModel

    model = adapted(tmp_path, name, **settings)
    convert(tmp_path / "model", tmp_path / "base.gguf")
    convert_adapter(tmp_path / "adapter", AutoConfig.from_pretrained(tmp_path / "model"), tmp_path / "adapter.gguf")
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0]
    with LlamaModel(tmp_path / "base.gguf", threads=1) as base:
        assert (base.logits(TOKENS) - expected).abs().max() > 0.1
    with LlamaModel(tmp_path / "base.gguf", adapter=tmp_path / "adapter.gguf", threads=1) as loaded:
        assert torch.allclose(loaded.logits(TOKENS), expected, atol=1e-4 if name not in ("gpt2", "gemma3") else 3e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target_modules": ["q_proj"], "use_dora": True}, "DoRA"),
        ({"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, "trained in full"),
        ({"target_modules": ["q_proj", "embed_tokens"]}, "not a factor of a linear layer"),
    ],
)
def test_adapters_that_llama_cpp_lacks_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    adapted(tmp_path, "qwen3", **settings)
    with pytest.raises(UserError, match=message):
        convert_adapter(tmp_path / "adapter", AutoConfig.from_pretrained(tmp_path / "model"), tmp_path / "adapter.gguf")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "model"]
