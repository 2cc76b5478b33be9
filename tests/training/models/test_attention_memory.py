"""Concatenated rows take memory by their own lengths: nothing that is saved grows with the square of the batch's tokens."""

from contextlib import nullcontext
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from training.batches.layout import choose_layout
from training.config.run_config import RunConfig
from training.models import attention
from training.simulation.cuda_kernels import cuda_kernels

# Raised within torch, where it resumes after a function that is not compiled.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")

LENGTH, FEW, MANY = 16, 8, 32
SHAPE = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
MORE: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma3_text": {"head_dim": 8, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
}


def trained_model(kind: str, config: RunConfig) -> Any:
    """A model, compiled if the configuration says so, and the collator of its rows."""
    torch.manual_seed(0)
    made = AutoConfig.for_model(kind, **SHAPE, **HEADS, **MORE[kind])
    model = AutoModelForCausalLM.from_config(made, attn_implementation="sdpa").train()
    collate = choose_layout(config, model, 0).collator
    return torch.compile(model, backend="eager") if config.torch_compile else model, collate


def largest_saved(model: Any, collate: Any, count: int) -> int:
    """The elements of the largest tensor that a step with `count` rows saves for its backward pass."""
    tokens = np.arange(3, 3 + LENGTH, dtype=np.int32)
    weights = {parameter.data_ptr() for parameter in model.parameters()}
    sizes = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(0 if tensor.data_ptr() in weights else tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(**collate([{"input_ids": tokens, "labels": tokens}] * count), use_cache=False).loss.backward()
    return max(sizes)


@pytest.mark.parametrize(
    ("kind", "kernels"),
    [
        *product(MORE, ("of a CPU", "of a GPU", "of a GPU without flash")),
        pytest.param("llama", "compiled", marks=pytest.mark.slow),
        pytest.param("gemma3_text", "compiled", marks=pytest.mark.nightly),
    ],
)
def test_nothing_saved_grows_with_the_square_of_the_tokens(monkeypatch: Any, kind: str, kernels: str) -> None:
    compiled = {"torch_compile": kernels == "compiled"}
    model, collate = trained_model(kind, RunConfig.model_validate({"model": "m", "data": "d"} | compiled))
    if kernels == "of a GPU without flash":
        monkeypatch.setattr(attention, "lacks_flash", lambda _: True)
    with cuda_kernels() if kernels == "of a GPU" else nullcontext():
        few, many = (largest_saved(model, collate, count) for count in (FEW, MANY))
    assert few >= FEW * LENGTH * SHAPE["hidden_size"]
    assert many <= few * MANY / FEW


@pytest.mark.slow
def test_a_compiled_model_computes_the_same_and_is_not_compiled_for_each_batch() -> None:
    config = RunConfig.model_validate({"model": "m", "data": "d", "torch_compile": True})
    compiled, collate = trained_model("llama", config)
    plain, _ = trained_model("llama", config.model_copy(update={"torch_compile": False}))
    generator = np.random.default_rng(0)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    graphs = []
    for lengths in ([3, 17, 9], [9, 3, 17], [5, 11, 2], [20, 1, 8]):
        tokens = [generator.integers(3, 99, length).astype(np.int32) for length in lengths]
        batch = collate([{"input_ids": row, "labels": row} for row in tokens])
        torch.testing.assert_close(compiled(**batch, use_cache=False).loss, plain(**batch, use_cache=False).loss)
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert 0 < graphs[0] == graphs[1]
    assert graphs[2] == graphs[3]  # the second number of tokens makes it a variable
