"""What attention saves under the kernels of each card: the formula agrees with a simulated step, and none saves all pairs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from training.config.choices import Precision
from training.config.run_config import RunConfig
from training.forecast.forecast import estimate
from training.forecast.formula.activations import Batch
from training.forecast.gpus import CARDS
from training.model_info.families import shape_of
from training.models import attention
from training.simulation.batches import SimulationRequest
from training.simulation.simulate import simulate

ROWS, LENGTH = 4, 256
LLAMA: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 4000, "hidden_size": 1024,
    "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 2, "intermediate_size": 2048,
    "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("packing", ["none", "padding_free"])
@pytest.mark.parametrize(
    ("card", "precision"), [("t4", "fp16"), ("v100-16gb", "fp32"), ("h100", "fp32"), ("h100", "bf16")]
)
def test_formula_and_simulation_agree(tmp_path: Path, card: str, precision: str, packing: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    asked = {"method": "lora", "target_modules": "all-linear", "micro_batch_size": ROWS, "max_length": LENGTH}
    asked |= {"packing": packing, "precision": precision, "gradient_checkpointing": "none"}
    config = RunConfig.model_validate({"model": str(tmp_path), "data": "d"} | asked)
    tokens = ROWS * LENGTH
    batch = Batch(ROWS, LENGTH, tokens, tokens, flat=packing != "none", labeled=tokens)
    foretold = estimate(config, shape_of(LLAMA), card=CARDS[card], batch=batch)
    place: dict[str, Any] = {"flash": CARDS[card].flash, "precision": Precision(precision)}
    simulated = simulate(SimulationRequest(config, [LENGTH] * ROWS, labeled=[LENGTH] * ROWS, **place))
    assert foretold.parts["activations"] == pytest.approx(simulated.parts["activations"], rel=0.1)
    assert foretold.allocated_bytes - foretold.parts["buffers"] == pytest.approx(simulated.peak_bytes, rel=0.1)
    if precision == "fp16":  # keys and values are repeated for each query head
        with_flash = simulate(
            SimulationRequest(config, [LENGTH] * ROWS, labeled=[LENGTH] * ROWS, precision=Precision.FP16)
        )
        repeated = 4 * 2 * 2 * (1024 - 128) * tokens
        assert simulated.parts["activations"] - with_flash.parts["activations"] == pytest.approx(repeated, rel=0.05)


def test_padded_rows_without_flash_kernels_ask_for_no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "lacks_flash", lambda _: True)
    heads, asked = (8, 2, 2), []
    query, key, value = (torch.randn(2, count, 5, 4) for count in heads)
    original = functional.scaled_dot_product_attention

    def noted(*tensors: torch.Tensor, **named: Any) -> torch.Tensor:
        asked.append((tensors[0].shape[1], tensors[1].shape[1], named.get("enable_gqa", False)))
        return original(*tensors, **named)

    module = torch.nn.Module()
    module.num_key_value_groups, module.is_causal = 4, True  # type: ignore[assignment]
    monkeypatch.setattr(functional, "scaled_dot_product_attention", noted)
    got, _ = attention.row_by_row(module, query, key, value, None)
    expected = original(query, key, value, is_causal=True, enable_gqa=True).transpose(1, 2)
    torch.testing.assert_close(got, expected)
    assert asked == [(8, 8, False)]


@pytest.mark.parametrize(
    ("capability", "precision", "has_flash"),
    [
        ((7, 0), "fp16", False), ((7, 5), "fp16", False), ((8, 0), "bf16", True), ((8, 9), "fp32", False),
        ((9, 0), "bf16", True), ((10, 0), "fp32", False), ((12, 0), "fp16", True),
    ],
)  # fmt: skip
def test_which_card_has_flash_kernels_in_which_precision(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], precision: str, has_flash: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert attention.has_flash_kernels(Precision(precision)) is has_flash
