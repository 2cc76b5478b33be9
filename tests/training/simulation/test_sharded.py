"""The simulated peak under ZeRO-3 and FSDP equals that of measured runs on two ranks, each for its own cause
(benchmarks/forecast/random_command.py)."""

import json
from pathlib import Path
from typing import Any

import pytest

from training.config.choices import Precision
from training.config.run_config import RunConfig
from training.simulation.batches import SimulationRequest
from training.simulation.simulate import simulate

Values = dict[str, Any]
ENDS: Values = {"eos_token_id": 1, "pad_token_id": 0, "bos_token_id": None}
GPT2 = ENDS | {"model_type": "gpt2", "n_embd": 192, "n_head": 4, "n_positions": 1024} | {
    "resid_pdrop": 0.0, "attn_pdrop": 0.0, "embd_pdrop": 0.0
}  # fmt: skip
UNTIED = ENDS | {"vocab_size": 1000, "hidden_size": 192, "num_hidden_layers": 5, "max_position_embeddings": 1024} | {
    "tie_word_embeddings": False
}  # fmt: skip
T5 = {"model_type": "t5", "vocab_size": 16000, "d_model": 192, "d_kv": 32, "num_heads": 6, "num_layers": 2, "d_ff": 544} | {
    "feed_forward_proj": "relu", "dropout_rate": 0.0, "decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0
}  # fmt: skip
QWEN3 = UNTIED | {"model_type": "qwen3", "num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 64}
MIXTRAL = UNTIED | {"model_type": "mixtral", "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96} | {
    "num_experts_per_tok": 2, "num_local_experts": 8
}  # fmt: skip

MEASURED: dict[str, tuple[Values, Values, Values, int]] = {
    # cause: model, settings, batch, bytes at the peak
    "weights are released after the forward pass, as in the passes before training": (
        GPT2 | {"vocab_size": 1000, "n_layer": 5},
        {"method": "full", "learning_rate": 1e-5, "precision": "bf16", "optimizer": "adafactor", "max_grad_norm": 0,
         "max_length": 128, "packing": "none"},
        {"lengths": [128, 128], "labeled": [96, 96]}, 34_438_144,
    ),
    "the graph keeps quantized weights": (
        GPT2 | {"vocab_size": 16000, "n_layer": 3},
        {"task": "pretraining", "method": "qlora", "quantization": "4bit", "double_quantization": False, "precision": "bf16",
         "max_grad_norm": 0, "max_length": 64},
        {"lengths": [64, 64], "labeled": [63, 63]}, 32_227_840,
    ),
    "weights are fetched ahead at each of an adapter's many modules": (
        QWEN3 | {"intermediate_size": 512},
        {"method": "lora", "lora_r": 4, "lora_dropout": 0.05, "use_dora": True, "packing": "packed", "max_length": 64,
         "gradient_checkpointing": "full"},
        {"lengths": [38, 26, 41, 23], "labeled": [29, 20, 31, 18]}, 24_929_280,
    ),
    "the graph keeps experts": (
        MIXTRAL, {"method": "vera", "packing": "packed", "max_length": 96, "gradient_accumulation_steps": 2},
        {"lengths": [53, 42], "labeled": [27, 22]}, 29_802_496,
    ),
    "embeddings that are not tied yet while files are read": (
        T5, {"task": "seq2seq", "method": "lora", "lora_r": 64, "precision": "bf16", "attention": "eager", "max_length": 64,
             "gradient_checkpointing": "full", "max_grad_norm": 0},
        {"lengths": [17, 48], "targets": [22, 61]}, 39_343_104,
    ),
    "FSDP reduces the gradients of 16-bit weights in 16 bits": (
        UNTIED | {"model_type": "mistral", "vocab_size": 16000, "hidden_size": 256, "num_hidden_layers": 3,
                  "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 512},
        {"strategy": "fsdp", "task": "classification", "method": "full", "learning_rate": 1e-5, "weights_precision": "bf16",
         "attention": "eager", "gradient_checkpointing": "offloaded", "max_length": 64, "micro_batch_size": 1},
        {"lengths": [56], "classes": 2}, 48_864_256,
    ),
}  # fmt: skip


LONG = (  # 4 to 7 s each
    "weights are fetched ahead at each of an adapter's many modules",
    "the graph keeps experts",
    "embeddings that are not tied yet while files are read",
)


@pytest.mark.parametrize(
    "cause", [pytest.param(cause, marks=pytest.mark.nightly if cause in LONG else ()) for cause in MEASURED]
)
def test_the_simulated_peak_is_the_measured_one(cause: str, tmp_path: Path) -> None:
    model, settings, batch, peak = MEASURED[cause]
    (tmp_path / "config.json").write_text(json.dumps(model), encoding="utf-8")
    values: Values = {
        "model": str(tmp_path),
        "data": "d",
        "strategy": "zero3",
        "num_processes": 2,
        "micro_batch_size": 2,
    }
    config = RunConfig.model_validate(values | {"precision": "fp32"} | settings)
    precision = Precision(config.precision)
    done = simulate(
        SimulationRequest(config, **batch, device="cpu", precision=precision, tokenizer_size=model["vocab_size"])
    )
    assert done.peak_bytes == pytest.approx(peak, rel=0.02)
