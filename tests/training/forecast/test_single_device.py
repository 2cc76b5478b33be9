"""The formula's peak equals that of measured runs on one device (benchmarks/forecast/random_command.py), each for its own cause."""

from typing import Any

import pytest

from training.config.run_config import RunConfig
from training.forecast.forecast import estimate
from training.forecast.formula.activations import Batch
from training.model_info.families import shape_of

Values = dict[str, Any]
NO_DROPOUT: Values = dict.fromkeys(("resid_pdrop", "attn_pdrop", "embd_pdrop"), 0.0)
QWEN2: Values = {
    "model_type": "qwen2", "vocab_size": 1000, "hidden_size": 192, "num_hidden_layers": 5, "num_attention_heads": 6,
    "num_key_value_heads": 1, "intermediate_size": 480, "tie_word_embeddings": False,
}  # fmt: skip
GEMMA2: Values = {
    "model_type": "gemma2", "vocab_size": 32_000, "hidden_size": 192, "num_hidden_layers": 6, "num_attention_heads": 6,
    "num_key_value_heads": 1, "head_dim": 32, "intermediate_size": 640, "tie_word_embeddings": True,
}  # fmt: skip
GPT2: Values = {
    "model_type": "gpt2",
    "vocab_size": 32_000,
    "n_embd": 128,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 1024,
}
OPT: Values = {
    "model_type": "opt", "vocab_size": 32_000, "hidden_size": 128, "num_hidden_layers": 5, "num_attention_heads": 4,
    "ffn_dim": 512, "word_embed_proj_dim": 128, "max_position_embeddings": 1024,
}  # fmt: skip
T5: Values = {
    "model_type": "t5", "vocab_size": 1000, "d_model": 384, "d_kv": 48, "num_heads": 8, "num_layers": 2, "d_ff": 1312,
    "feed_forward_proj": "relu", "dropout_rate": 0.1,
}  # fmt: skip
MT5: Values = {
    "model_type": "mt5", "vocab_size": 1000, "d_model": 256, "d_kv": 64, "num_heads": 4, "num_layers": 2, "d_ff": 576,
    "feed_forward_proj": "gated-gelu", "dropout_rate": 0.0,
}  # fmt: skip
LLAMA: Values = {
    "model_type": "llama", "vocab_size": 4000, "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 2, "intermediate_size": 864, "tie_word_embeddings": True,
}  # fmt: skip
BLOOM: Values = {"model_type": "bloom", "vocab_size": 16_000, "hidden_size": 192, "n_layer": 6, "n_head": 4}
MOE: Values = {
    "model_type": "qwen3_moe", "vocab_size": 1000, "hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 1, "head_dim": 32, "intermediate_size": 576, "num_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 192, "tie_word_embeddings": False,
}  # fmt: skip

MEASURED: dict[str, tuple[Values, Values, Batch, int]] = {
    # cause: model, settings, batch, bytes at the peak
    "an adapter with dropout saves what it drops instead of its input": (
        QWEN2, {"method": "lora", "lora_r": 8, "lora_dropout": 0.05, "target_modules": "all-linear", "max_length": 384},
        Batch(1, 384, 384, 288, flat=True, labeled=288), 56_092_160,
    ),
    "a softcap has a slope, in chunks too": (
        GEMMA2, {"method": "lora", "lora_r": 16, "lora_dropout": 0.0, "gradient_checkpointing": "full", "max_length": 96},
        Batch(1, 96, 96, 72, flat=True, labeled=72), 64_685_056,
    ),
    "a loss in chunks takes the tokens with loss, of padded rows too": (
        GPT2 | NO_DROPOUT,
        {"method": "qlora", "quantization": "4bit", "lora_r": 64, "lora_dropout": 0.0, "precision": "bf16", "packing": "none",
         "gradient_checkpointing": "selective", "max_length": 64}, Batch(2, 64, 128, 128, labeled=88), 27_514_880,
    ),
    "a tied embedding has three gradients besides those of earlier micro steps": (
        OPT, {"method": "full", "gradient_accumulation_steps": 2, "packing": "none", "gradient_checkpointing": "full"},
        Batch(1, 64, 64, 64, first_micro=True, labeled=44), 132_705_792,
    ),
    "of two layers, the one that is not recomputed is done before the other is": (
        T5, {"task": "seq2seq", "method": "lora", "lora_r": 8, "lora_dropout": 0.05, "target_modules": "all-linear",
             "max_length": 64, "gradient_checkpointing": "selective"},
        Batch(2, 64, 128, 128, 64, 128, first_micro=True, labeled=128), 56_045_568,
    ),
    "DoRA computes norms of weights and saves outputs, and a softcap saves the scores of eager attention": (
        GEMMA2 | {"vocab_size": 1000, "hidden_size": 256, "num_hidden_layers": 5, "num_attention_heads": 8,
                  "num_key_value_heads": 8, "intermediate_size": 800, "tie_word_embeddings": False},
        {"method": "lora", "lora_r": 64, "lora_dropout": 0.0, "target_modules": "all-linear", "use_dora": True, "strategy": "ddp",
         "num_processes": 2, "optimizer": "adafactor", "gradient_checkpointing": "selective"},
        Batch(2, 64, 128, 64, flat=True, first_micro=True, labeled=64), 60_417_536,
    ),
    "only a decoder's last layers train": (
        MT5, {"task": "seq2seq", "method": "full", "trainable_layers": 2, "gradient_accumulation_steps": 2, "precision": "bf16"},
        Batch(1, 96, 96, 96, 96, 96, labeled=96), 48_446_976,
    ),
    "each layer keeps the sum of fused experts and their adapter": (
        MOE, {"method": "lora", "lora_r": 4, "lora_dropout": 0.0, "target_modules": "all-linear", "precision": "bf16",
              "strategy": "zero1", "num_processes": 2, "optimizer": "adamw_8bit", "gradient_checkpointing": "selective"},
        Batch(1, 192, 192, 96, flat=True, first_micro=True, labeled=96), 10_116_096,
    ),
    "an adapter in fp32 between 16-bit weights copies its inputs": (
        LLAMA, {"method": "lora", "lora_r": 64, "lora_dropout": 0.0, "target_modules": "all-linear", "weights_precision": "bf16",
                "optimizer": "sgd"}, Batch(2, 256, 512, 256, flat=True, first_micro=True, labeled=256), 43_302_912,
    ),
    "BLOOM has eager attention, and an activation with temporary tensors": (
        BLOOM, {"task": "classification", "method": "lora", "lora_r": 16, "lora_dropout": 0.0, "target_modules": "all-linear",
                "gradient_checkpointing": "selective", "precision": "bf16"},
        Batch(1, 96, 96, 96, first_micro=True, labeled=95), 18_969_600,
    ),
    "T5 does not quantize `wo`, keeps its position biases, and 8-bit layers keep inputs that checkpointing does not free": (
        T5 | {"d_model": 288, "num_heads": 6, "d_ff": 640},
        {"task": "seq2seq", "strategy": "zero2", "num_processes": 2, "method": "qlora", "quantization": "8bit", "lora_r": 8,
         "lora_dropout": 0.0, "gradient_accumulation_steps": 2, "gradient_checkpointing": "offloaded", "precision": "bf16"},
        Batch(1, 96, 96, 96, 96, 96, labeled=96), 11_210_752,
    ),
    "gated-gelu is gelu_new": (
        MT5 | {"d_model": 192, "d_kv": 48, "d_ff": 736},
        {"task": "seq2seq", "method": "lora", "lora_r": 16, "lora_dropout": 0.0, "target_modules": "all-linear",
         "optimizer": "muon"},
        Batch(2, 96, 192, 192, 96, 192, first_step=True, first_micro=True, labeled=182), 39_125_504,
    ),
    "LoHa computes weights as large as the model's, and their gradients": (
        MOE | {"model_type": "qwen2_moe", "num_hidden_layers": 4, "num_key_value_heads": 2, "intermediate_size": 672,
               "num_experts": 4, "shared_expert_intermediate_size": 384},
        {"method": "loha", "gradient_accumulation_steps": 3, "gradient_checkpointing": "offloaded", "precision": "bf16"},
        Batch(1, 64, 64, 48, flat=True, labeled=48), 12_539_904,
    ),
    "experts that every token goes through": (
        MOE | {"model_type": "qwen2_moe", "vocab_size": 4000, "hidden_size": 128, "num_hidden_layers": 6, "num_attention_heads": 4,
               "num_key_value_heads": 4, "num_experts": 4, "moe_intermediate_size": 128, "shared_expert_intermediate_size": 256},
        {"task": "classification", "method": "qlora", "quantization": "4bit", "double_quantization": False, "lora_r": 4,
         "lora_dropout": 0.0},
        Batch(2, 176, 352, 352, first_micro=True, labeled=282), 38_460_928,
    ),
    "held-out rows that are longer than those of training": (
        MOE | {"vocab_size": 16_000, "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4,
               "intermediate_size": 288, "num_experts": 4, "moe_intermediate_size": 64, "tie_word_embeddings": True},
        {"method": "lora", "lora_r": 4, "lora_dropout": 0.0, "target_modules": "all-linear", "gradient_checkpointing": "full"},
        Batch(1, 176, 176, 45, flat=True, first_micro=True, labeled=45, held_out_tokens=91), 22_670_848,
    ),
    "Gemma 2 has a norm after attention and MLP too": (
        {"model_type": "gemma2", "vocab_size": 1000, "hidden_size": 192, "num_hidden_layers": 5, "num_attention_heads": 4,
         "intermediate_size": 608, "tie_word_embeddings": False, "num_key_value_heads": 4, "head_dim": 32},
        {"task": "pretraining", "method": "qlora", "quantization": "4bit", "lora_r": 4, "target_modules": "all-linear",
         "gradient_accumulation_steps": 3, "packing": "packed", "gradient_checkpointing": "selective", "precision": "bf16",
         "optimizer": "adamw_8bit"},
        Batch(3, 64, 128, 125, flat=True, labeled=125), 10_071_040,
    ),
    "frozen layers of an encoder are not recomputed": (
        {"model_type": "t5", "vocab_size": 1000, "d_model": 256, "d_kv": 64, "num_heads": 4, "num_layers": 2, "d_ff": 512,
         "feed_forward_proj": "gated-gelu", "dropout_rate": 0.0},
        {"method": "full", "task": "seq2seq", "trainable_layers": 2, "gradient_checkpointing": "full", "precision": "bf16",
         "optimizer": "adamw_anyprecision"},
        Batch(2, 192, 384, 96, 48, 96, first_micro=True, labeled=96, held_out_tokens=96), 23_916_544,
    ),
    "capped logits are a further tile of the fused head": (
        {"model_type": "gemma2", "vocab_size": 16000, "hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 576, "tie_word_embeddings": True, "num_key_value_heads": 2, "head_dim": 64},
        {"task": "dpo", "method": "lora", "lora_r": 4, "lora_dropout": 0.05, "target_modules": "all-linear",
         "gradient_checkpointing": "offloaded", "precision": "bf16", "optimizer": "muon"},
        Batch(4, 64, 256, 256), 158_667_264,
    ),
    "AdamW keeps a second moment of experts beside Muon": (
        {"model_type": "qwen3_moe", "vocab_size": 4000, "hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4,
         "intermediate_size": 960, "tie_word_embeddings": False, "num_key_value_heads": 1, "head_dim": 32, "num_experts_per_tok":
         2, "num_experts": 4, "moe_intermediate_size": 256},
        {"method": "full", "gradient_accumulation_steps": 2, "gradient_checkpointing": "offloaded", "precision": "fp32",
         "optimizer": "muon"},
        Batch(1, 128, 128, 96, flat=True, labeled=96, held_out_tokens=96), 80_087_552,
    ),
}  # fmt: skip


@pytest.mark.parametrize("cause", MEASURED)
def test_the_forecast_is_the_measured_peak(cause: str) -> None:
    model, settings, batch, peak = MEASURED[cause]
    given = {"model": "m", "data": "d", "memory_limit": 65_536, "precision": "fp32", "gradient_checkpointing": "none"}
    config = RunConfig.model_validate(given | settings)
    assert estimate(config, shape_of(model), batch=batch).allocated_bytes == pytest.approx(peak, rel=0.03)


def test_eight_bit_layers_save_their_inputs_on_a_cpu() -> None:
    base = {"model": "m", "data": "d", "memory_limit": 65_536, "method": "qlora", "gradient_checkpointing": "none"}
    sizes = {
        bits: estimate(
            RunConfig.model_validate(base | {"quantization": bits, "target_modules": "q_proj"}),
            shape_of(QWEN2),
            batch=Batch(1, 64, 64, 1),
        ).parts["activations"]
        for bits in ("4bit", "8bit")
    }
    assert sizes["8bit"] > 1.2 * sizes["4bit"]
