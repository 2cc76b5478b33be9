"""The formula's peak equals that of runs which were measured (benchmarks/forecast/random_command.py), each for its own cause."""

from typing import Any

import pytest

from training.config.run_config import RunConfig
from training.forecast.forecast import Forecast, estimate
from training.forecast.formula.activations import Batch
from training.forecast.gpus import CARDS
from training.model_info.families import shape_of

Values = dict[str, Any]
TIED: Values = {"tie_word_embeddings": True}
UNTIED: Values = {"tie_word_embeddings": False}


def decoder(kind: str, vocab: int, hidden: int, layers: int, heads: int, keys: int, wide: int, **values: Any) -> Values:
    return {
        "model_type": kind, "vocab_size": vocab, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": keys, "intermediate_size": wide, **values,
    }  # fmt: skip


EXPERTS: Values = TIED | {"num_experts_per_tok": 2, "num_local_experts": 4}
MT5: Values = {
    "model_type": "mt5", "vocab_size": 4000, "d_model": 256, "d_kv": 32, "num_heads": 8, "num_layers": 2, "d_ff": 576,
    "feed_forward_proj": "gated-gelu", "dropout_rate": 0.0, "is_encoder_decoder": True,
}  # fmt: skip
BLOOM: Values = {"model_type": "bloom", "vocab_size": 16000, "hidden_size": 128, "n_layer": 5, "n_head": 4}
GPT2: Values = {"model_type": "gpt2", "vocab_size": 4000, "n_embd": 192, "n_layer": 5, "n_head": 6, "n_positions": 1024,
                "resid_pdrop": 0.0, "attn_pdrop": 0.0, "embd_pdrop": 0.0}  # fmt: skip
OPT: Values = {"model_type": "opt", "vocab_size": 1000, "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 8,
               "ffn_dim": 1536, "word_embed_proj_dim": 384, "max_position_embeddings": 1024}  # fmt: skip
SMOLLM3 = decoder("smollm3", 4000, 192, 4, 6, 2, 640, **UNTIED)
FULL: Values = {"method": "full", "learning_rate": 1e-5, "num_processes": 2, "packing": "none"}

MEASURED: dict[str, tuple[Values, Values, Batch, int]] = {
    # cause: model, settings, batch, bytes at the peak
    "a rank of ZeRO-2 holds whole weights that its part touches": (
        decoder("llama", 16000, 288, 3, 6, 6, 704, **TIED),
        {"strategy": "zero2", "precision": "fp32", "attention": "eager", "optimizer": "lion_8bit"},
        Batch(1, 80, 80, 80), 134_043_136,
    ),
    "ZeRO-2 flattens 16-bit gradients before it converts them": (
        decoder("mixtral", 4000, 256, 3, 4, 2, 128, **EXPERTS),
        {"strategy": "zero2", "precision": "bf16", "gradient_checkpointing": "full"}, Batch(1, 64, 64, 64), 33_936_384,
    ),
    "ZeRO-2 with gradient accumulation": (
        MT5, {"strategy": "zero2", "precision": "bf16", "task": "seq2seq", "gradient_accumulation_steps": 2},
        Batch(1, 56, 56, 64, 64, 64), 52_641_280,
    ),
    "Adafactor does not factor the flat state of ZeRO": (
        OPT, {"strategy": "zero2", "precision": "bf16", "trainable_layers": 1, "optimizer": "adafactor"},
        Batch(1, 64, 64, 64), 42_952_704,
    ),
    "ZeRO-1 keeps the gradients of other ranks until the pass ends": (
        decoder("granite", 1000, 384, 3, 8, 1, 1152, **TIED), {"strategy": "zero1", "precision": "fp32"},
        Batch(1, 56, 56, 56), 80_742_400,
    ),
    "ZeRO-3 reduces a gathered embedding's gradient at the end": (
        BLOOM, {"strategy": "zero3", "precision": "fp32", "task": "classification", "gradient_checkpointing": "full",
                "gradient_accumulation_steps": 2}, Batch(1, 64, 64, 64), 55_089_152,
    ),
    "ZeRO-3 gathers fused experts to save them, and splits them": (
        decoder("mixtral", 1000, 256, 6, 8, 8, 128, **EXPERTS),
        {"strategy": "zero3", "precision": "fp32", "gradient_checkpointing": "offloaded", "gradient_accumulation_steps": 2},
        Batch(1, 64, 64, 16, flat=True), 65_363_456,
    ),
    "ZeRO-3 keeps no gathered weights for layers that are recomputed": (
        decoder("phi3", 1000, 192, 6, 6, 1, 544, **UNTIED),
        {"strategy": "zero3", "precision": "bf16", "gradient_checkpointing": "offloaded", "optimizer": "adamw_8bit"},
        Batch(4, 64, 256, 256), 22_394_880,
    ),
    "FSDP with a tied head": (
        decoder("qwen2", 4000, 384, 5, 6, 1, 864, **TIED), {"strategy": "fsdp", "precision": "fp32"},
        Batch(1, 64, 64, 32, flat=True), 94_749_696,
    ),
    "FSDP gathers a tied weight twice to save it": (
        decoder("gemma2", 32000, 128, 2, 4, 4, 288, **TIED, head_dim=64), {"strategy": "fsdp", "precision": "bf16"},
        Batch(2, 48, 94, 72, flat=True), 78_597_120,
    ),
    "FSDP with gradient accumulation keeps the rank's part": (
        SMOLLM3, {"strategy": "fsdp", "precision": "fp32", "gradient_checkpointing": "full", "gradient_accumulation_steps": 2},
        Batch(2, 50, 96, 73, flat=True), 40_307_712,
    ),
    "Muon's iteration, and AdamW's state of what is not a matrix of a layer": (
        decoder("mistral", 1000, 256, 2, 8, 8, 960, **UNTIED),
        {"strategy": "ddp", "precision": "bf16", "gradient_checkpointing": "offloaded", "optimizer": "muon"},
        Batch(5, 64, 189, 52, flat=True), 44_488_704,
    ),
    "Adafactor makes two fp32 tensors of the largest weight": (
        decoder("gemma2", 32000, 256, 3, 8, 2, 896, **UNTIED, head_dim=32),
        {"num_processes": 1, "precision": "fp32", "gradient_checkpointing": "full", "optimizer": "adafactor"},
        Batch(1, 64, 64, 48, flat=True), 218_359_296,
    ),
    "FSDP keeps the head that the tests before training gathered": (
        decoder("qwen3", 1000, 384, 3, 6, 1, 960, **UNTIED, head_dim=32),
        {"strategy": "fsdp", "method": "loha", "precision": "fp32", "gradient_checkpointing": "none", "packing": "auto"},
        Batch(1, 96, 96, 48, flat=True, first_micro=True, labeled=48), 30_529_536,
    ),
    "FSDP copies the tied embedding while it gathers the first layer": (
        decoder("mixtral", 32000, 128, 4, 4, 1, 128, **TIED, num_experts_per_tok=2, num_local_experts=8),
        {"strategy": "fsdp", "method": "vera", "precision": "fp32", "gradient_checkpointing": "none", "optimizer": "sgd",
         "packing": "auto"}, Batch(2, 64, 128, 32, flat=True, first_step=True, first_micro=True, labeled=32), 48_329_216,
    ),
    "rank 0 gathers the trained weights of FSDP": (
        decoder("llama", 16000, 192, 6, 4, 2, 672, **TIED),
        {"strategy": "fsdp", "method": "lora", "lora_r": 64, "lora_dropout": 0.05, "target_modules": "all-linear",
         "gradient_checkpointing": "full", "precision": "bf16", "optimizer": "adamw_anyprecision"},
        Batch(1, 96, 96, 24, flat=True, first_step=True, first_micro=True, labeled=24), 33_475_072,
    ),
    "fp32 weights need no Kahan compensation": (
        GPT2, {"num_processes": 1, "precision": "fp32", "gradient_checkpointing": "selective", "optimizer": "adamw_anyprecision"},
        Batch(3, 48, 112, 31, flat=True), 57_220_608,
    ),
}  # fmt: skip


_TOLERANCES = {
    "FSDP with gradient accumulation keeps the rank's part": 0.025,
    "FSDP keeps the head that the tests before training gathered": 0.02,
}


def config(**values: Any) -> RunConfig:
    return RunConfig.model_validate(
        {"model": "m", "data": "d", "memory_limit": 65_536, "max_length": 64} | FULL | values
    )


@pytest.mark.parametrize("cause", MEASURED)
def test_the_forecast_is_the_measured_peak(cause: str) -> None:
    model, settings, batch, peak = MEASURED[cause]
    found = estimate(config(**settings), shape_of(model), batch=batch).allocated_bytes
    assert found == pytest.approx(peak, rel=_TOLERANCES.get(cause, 0.015))


def _at(moment: str, card: str = "", **settings: Any) -> Forecast:
    found = estimate(
        config(**settings), shape_of(SMOLLM3 | TIED), card=CARDS[card] if card else None, batch=Batch(1, 8, 8, 8)
    )
    assert moment in found.moments
    return found


def test_a_gpu_adds_the_gradients_of_a_tied_embedding_in_place() -> None:
    settings = {"strategy": "zero2", "precision": "fp32"}
    table = 4 * shape_of(SMOLLM3 | TIED).table
    found = [_at("gradients", card, **settings).moments for card in ("", "v100-32gb")]
    here, there = (moments["gradients"] - moments["optimizer"] for moments in found)  # without cuBLAS's workspace
    assert here - there == table


def test_the_optimizer_has_no_state_at_the_start() -> None:
    found = _at("start", strategy="ddp", precision="fp32")
    assert found.moments["start"] == 2 * found.parts["weights"]  # with DDP's broadcast


def test_a_quantized_model_is_loaded_from_files_of_fp32_weights() -> None:
    shape = shape_of(decoder("gemma3_text", 16000, 384, 4, 6, 2, 800, **TIED, head_dim=64))
    asked = config(method="qlora", quantization="4bit", num_processes=1, precision="bf16")
    found = estimate(asked, shape, batch=Batch(1, 8, 8, 8))
    assert found.moments["loading"] == 6 * shape.table == 36_864_000  # measured


def test_fsdp_trains_fp32_weights_whatever_the_optimizer() -> None:
    weights = [_at("start", strategy="fsdp", precision="bf16", optimizer=name).parts["weights"]
               for name in ("adamw", "adamw_anyprecision")]  # fmt: skip
    assert weights[0] == weights[1] == 4 * shape_of(SMOLLM3 | TIED).parameters / 2


def test_fsdp_pads_the_embeddings_that_ranks_divide_unevenly_when_it_gathers_them() -> None:
    def saving(vocab: int) -> float:
        shape = shape_of(decoder("llama", vocab, 128, 2, 4, 4, 352, **TIED))
        asked = config(strategy="fsdp", method="lora", precision="fp32")
        return estimate(asked, shape, batch=Batch(1, 8, 8, 8)).moments["saving"]

    assert saving(8001) - saving(8000) == pytest.approx(4 * 128 * 8000 / 2, rel=0.01)
