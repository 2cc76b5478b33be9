"""The formula's peak equals that of measured runs whose ranks gather weights (benchmarks/forecast/random_command.py), each for its
own cause."""

from typing import Any

import pytest

from training.config.run_config import RunConfig
from training.forecast.forecast import estimate
from training.forecast.formula.activations import Batch
from training.model_info.families import shape_of

Values = dict[str, Any]
GIVEN: Values = {"model": "m", "data": "d", "memory_limit": 65_536, "method": "full", "num_processes": 2}

MEASURED: dict[str, tuple[Values, Values, Batch, int]] = {
    # cause: model, settings, batch, bytes at the peak
    "ZeRO-3 keeps all weights until the backward pass if no pass without one came before": (
        {"model_type": "smollm3", "vocab_size": 1000, "hidden_size": 288, "num_hidden_layers": 2, "num_attention_heads": 6,
         "intermediate_size": 1088, "tie_word_embeddings": False, "num_key_value_heads": 2},
        {"task": "classification", "strategy": "zero3", "num_processes": 4, "method": "lora", "lora_dropout": 0.05,
         "target_modules": "all-linear", "gradient_checkpointing": "full", "precision": "fp32", "attention": "eager", "optimizer":
         "lion"},
        Batch(1, 128, 128, 128, first_micro=True, labeled=127), 22_557_184,
    ),
    "ZeRO-3 keeps what an adapter's backward pass needs": (
        {"model_type": "smollm3", "vocab_size": 4000, "hidden_size": 192, "num_hidden_layers": 5, "num_attention_heads": 6,
         "intermediate_size": 640, "tie_word_embeddings": False, "num_key_value_heads": 6},
        {"task": "orpo", "strategy": "zero3", "method": "lora", "lora_r": 4, "use_dora": True, "precision": "bf16"},
        Batch(2, 64, 128, 128), 26_570_752,
    ),
    "ZeRO-3 gathers nothing ahead in an encoder-decoder": (
        {"model_type": "mt5", "vocab_size": 4000, "d_model": 192, "d_kv": 32, "num_heads": 6, "num_layers": 2, "d_ff": 512,
         "feed_forward_proj": "gated-gelu", "dropout_rate": 0.0},
        {"task": "seq2seq", "strategy": "zero3", "precision": "fp32", "optimizer": "lion_8bit", "max_grad_norm": 0.0,
         "weights_precision": "bf16"},
        Batch(1, 128, 128, 112, 112, 112, first_micro=True, labeled=109), 41_409_536,
    ),
    "layers that are done are gathered again for the backward pass": (
        {"model_type": "gpt_neox", "vocab_size": 4000, "hidden_size": 128, "num_hidden_layers": 6, "num_attention_heads": 4,
         "intermediate_size": 512, "hidden_act": "gelu"},
        {"strategy": "zero3", "method": "lora", "lora_r": 64, "lora_dropout": 0.05, "target_modules": "all-linear",
         "precision": "fp32"},
        Batch(2, 96, 192, 96, flat=True, first_micro=True, labeled=96), 37_188_608,
    ),
    "DoRA keeps unpacked weights that it multiplies dropped inputs with": (
        {"model_type": "granite", "vocab_size": 1000, "hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 4,
         "intermediate_size": 672, "tie_word_embeddings": True, "num_key_value_heads": 2},
        {"strategy": "fsdp", "method": "qlora", "quantization": "4bit", "lora_r": 8, "lora_dropout": 0.05, "use_dora": True,
         "packing": "packed", "precision": "fp32"},
        Batch(2, 64, 128, 64, flat=True, first_micro=True, labeled=64), 37_018_112,
    ),
    "FSDP gathers embeddings that are not quantized": (
        {"model_type": "phi3", "vocab_size": 4000, "hidden_size": 192, "num_hidden_layers": 5, "num_attention_heads": 4,
         "intermediate_size": 512, "tie_word_embeddings": True, "num_key_value_heads": 1},
        {"task": "pretraining", "strategy": "fsdp", "method": "qlora", "quantization": "4bit", "lora_r": 8, "packing": "packed",
         "gradient_checkpointing": "offloaded", "precision": "bf16"},
        Batch(1, 64, 64, 63, flat=True, first_micro=True, labeled=63), 6_791_168,
    ),
    "FSDP keeps frozen weights of 16 bits": (
        {"model_type": "mistral", "vocab_size": 16000, "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
         "intermediate_size": 416, "tie_word_embeddings": True, "num_key_value_heads": 1},
        {"strategy": "fsdp", "trainable_layers": 1, "gradient_checkpointing": "offloaded", "precision": "bf16", "optimizer":
         "adamw_anyprecision", "max_grad_norm": 0.0},
        Batch(1, 128, 128, 64, flat=True, first_micro=True, labeled=64), 20_174_336,
    ),
    "FSDP reduces the gradients of 16-bit weights in 16 bits": (
        {"model_type": "mistral", "vocab_size": 16000, "hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 8,
         "intermediate_size": 512, "tie_word_embeddings": False, "num_key_value_heads": 8},
        {"task": "classification", "strategy": "fsdp", "gradient_checkpointing": "offloaded", "precision": "fp32", "attention":
         "eager", "weights_precision": "bf16"},
        Batch(1, 56, 56, 56, first_micro=True, labeled=51), 48_864_256,
    ),
}  # fmt: skip


@pytest.mark.parametrize("cause", MEASURED)
def test_the_forecast_is_the_measured_peak(cause: str) -> None:
    model, settings, batch, peak = MEASURED[cause]
    config = RunConfig.model_validate(GIVEN | settings)
    assert estimate(config, shape_of(model), batch=batch).allocated_bytes == pytest.approx(peak, rel=0.02)
