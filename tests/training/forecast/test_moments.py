"""Causes of wrong forecasts that random runs showed (benchmarks/forecast/random_command.py)."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from trainer_process import train_here

from benchmarks.matrix.inputs import byte_tokenizer
from training.config.choices import Quantization
from training.config.run_config import RunConfig
from training.config.task import Task
from training.forecast.forecast import estimate
from training.forecast.formula.activations import Batch
from training.forecast.gpus import CARDS
from training.model_info.families import read_shape, shape_of

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 4, "num_attention_heads": 4,
    "vocab_size": 8000, "tie_word_embeddings": False,
}  # fmt: skip
EXPERTS: dict[str, Any] = LLAMA | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
T5: dict[str, Any] = {
    "model_type": "t5", "is_encoder_decoder": True, "d_model": 128, "d_ff": 256, "d_kv": 32, "num_heads": 4, "num_layers": 2,
    "vocab_size": 1000, "feed_forward_proj": "relu", "dropout_rate": 0.0,
}  # fmt: skip
LENGTH = 64


def config(**values: Any) -> RunConfig:
    return RunConfig.model_validate({"model": "m", "data": "d", "memory_limit": 4096, "max_length": LENGTH} | values)


def batch(rows: int = 2, length: int = LENGTH) -> Batch:
    return Batch(rows, length, rows * length, rows * length)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    known = AutoConfig.for_model(**LLAMA, pad_token_id=0, bos_token_id=None, eos_token_id=1)
    AutoModelForCausalLM.from_config(known).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


ROWS: dict[str, list[dict[str, Any]]] = {
    "classification": [{"text": "a" * 80, "label": ("even", "odd")[n % 2]} for n in range(8)],
    "dpo": [{"prompt": "a" * 20, "chosen": "b" * 80, "rejected": "c" * 80} for _ in range(8)],
    "orpo": [{"prompt": "a" * 20, "chosen": "b" * 80, "rejected": "c" * 80} for _ in range(8)],
}


@pytest.mark.train
@pytest.mark.parametrize(("task", "rows"), [("classification", 2), ("dpo", 4), ("orpo", 4)])
def test_the_forecast_of_a_task_matches_a_measured_run(model: Path, tmp_path: Path, task: str, rows: int) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS[task]))
    settings = {"task": task, "method": "full", "micro_batch_size": 2, "max_steps": 2, "eval_split": 0, "eval_steps": 0}
    asked = config(**settings, learning_rate=1e-5)
    run = train_here(tmp_path, model, data, **settings, max_length=LENGTH, memory_limit=4096, learning_rate=1e-5)
    (counted,) = run.summary["memory"]["peak_bytes"]
    foretold = estimate(asked, read_shape(model / "config.json"), batch=batch(rows)).allocated_bytes
    assert foretold == pytest.approx(counted, rel=0.06)


@pytest.mark.train
@pytest.mark.parametrize("coefficient", [1.0, 0.5])
def test_the_forecast_of_a_distillation_matches_a_measured_run(model: Path, tmp_path: Path, coefficient: float) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text(json.dumps({"prompt": "a" * 20, "completion": "b"}) + "\n")
    data.write_text(data.read_text() * 16)
    settings = {
        "task": "distill", "teacher": str(model), "max_completion_length": 100, "jsd_coefficient": coefficient, "method": "lora",
        "micro_batch_size": 8, "max_steps": 2, "eval_split": 0, "eval_steps": 0, "baseline_prompts": 0, "precision": "fp32",
    }  # fmt: skip
    run = train_here(tmp_path, model, data, **settings, max_length=LENGTH, memory_limit=4096)
    (counted,) = run.summary["memory"]["peak_bytes"]
    shape = read_shape(model / "config.json")
    forecast = estimate(config(**settings), replace(shape, teacher=shape), batch=Batch(8, 120, 8 * 120, 8 * 100))
    assert forecast.allocated_bytes == pytest.approx(counted, rel=0.06)


def test_a_scoring_model_has_no_language_model_head() -> None:
    head = 4 * LLAMA["vocab_size"] * LLAMA["hidden_size"]
    taken = {task: estimate(config(task=task, method="full"), shape_of(LLAMA), batch=batch()).parts["weights"]
             for task in ("sft", "classification", "reward")}  # fmt: skip
    assert taken["sft"] - taken["classification"] == taken["sft"] - taken["reward"] == head


@pytest.mark.parametrize("settings", [{"task": "dpo"}, {"task": "kto"}, {"task": "grpo", "kl_coefficient": 0.1}])
def test_full_training_with_a_reference_keeps_a_second_model_and_an_adapter_does_not(settings: dict[str, Any]) -> None:
    def weights(**values: Any) -> int:
        return estimate(config(**values), shape_of(LLAMA), batch=batch()).parts["weights"]

    assert weights(**settings, method="full") == 2 * weights(task="sft", method="full")
    assert weights(**settings, method="lora") == weights(task="sft", method="lora")


def test_the_tile_of_the_fused_head_has_its_width_also_for_a_small_vocabulary() -> None:
    found = estimate(config(task="dpo", precision="fp32"), shape_of(LLAMA | {"vocab_size": 500}), batch=batch())
    assert found.parts["logits"] > 4 * 2 * LENGTH * 32_768


def test_layers_that_do_not_train_store_no_activations() -> None:
    def activations(**values: Any) -> int:
        return estimate(config(method="full", **values), shape_of(LLAMA), batch=batch(8)).parts["activations"]

    assert activations(trainable_layers=1) < 0.5 * activations(trainable_layers=4) <= 0.5 * activations()


def test_eager_attention_stores_its_probabilities() -> None:
    def activations(attention: str) -> int:
        found = estimate(config(attention=attention, max_length=512), shape_of(LLAMA), batch=batch(2, 512))
        return found.parts["activations"]

    assert activations("eager") - activations("sdpa") == 4 * 4 * 2 * 4 * 512 * 512  # layers, bytes, rows, heads, pairs


def test_saving_splits_fused_experts_in_memory() -> None:
    shape = shape_of(EXPERTS)
    found = estimate(config(method="full"), shape, batch=batch(1, 8))
    split = 4 * 4 * 8 * 2 * 128 * 352  # layers, bytes, experts, gate and up
    assert found.moments["saving"] - 3 * 4 * shape.parameters == pytest.approx(split, rel=0.01)
    lora = estimate(config(method="lora"), shape, batch=batch(1, 8))
    assert lora.moments["saving"] == lora.parts["weights"] + lora.parts["optimizer"]


def test_autocast_s_copies_of_recomputed_layers_are_gone_in_the_backward_pass() -> None:
    def moments(checkpointing: str) -> dict[str, int]:
        asked = config(method="full", precision="bf16", gradient_checkpointing=checkpointing)
        return estimate(asked, shape_of(LLAMA), batch=batch(1, 8)).moments

    plain, recomputed = moments("none"), moments("full")
    layers = 2 * shape_of(LLAMA).linear_weights
    assert plain["backward"] - recomputed["backward"] >= layers
    assert abs((plain["forward"] - recomputed["forward"]) / layers) < 0.2  # both caches hold them until the pass ends


def test_an_encoder_s_activations_remain_when_the_decoder_s_gradients_are_complete() -> None:
    asked = config(task="seq2seq", method="full")
    found = estimate(asked, shape_of(T5), batch=Batch(8, 512, 4096, 8 * 16, 16, 8 * 16))
    assert found.moments["encoder"] > found.moments["gradients"]


def test_a_memory_limit_on_cpu_decides_whether_a_run_fits() -> None:
    needed = estimate(config(method="full"), shape_of(LLAMA), batch=batch())
    enough, less = -(-needed.peak_bytes // 2**20), needed.allocated_bytes // 2**20
    assert estimate(config(method="full", memory_limit=enough), shape_of(LLAMA), batch=batch()).fits
    refused = estimate(config(method="full", memory_limit=less), shape_of(LLAMA), batch=batch())
    assert not refused.fits
    assert "memory_limit" in refused.reasons[0]


def test_adafactor_s_step_makes_fp32_tensors_of_the_largest_weight() -> None:
    shape = shape_of(LLAMA)
    taken = {kind: estimate(config(method="full", optimizer=kind), shape, batch=batch(1, 8)).moments["optimizer"]
             for kind in ("adafactor", "sgd")}  # fmt: skip
    state = estimate(config(method="full", optimizer="adafactor"), shape, batch=batch(1, 8)).parts["optimizer"]
    assert taken["adafactor"] - state == taken["sgd"] - 4 * shape.parameters + 2 * 4 * shape.table


@pytest.mark.parametrize("task", ["grpo", "distill"])
def test_of_prompts_with_samples_only_these_are_taken_to_have_logits(task: str) -> None:
    values = {
        "task": task,
        "precision": "bf16",
        "max_length": 1024,
        "max_completion_length": 256,
        "micro_batch_size": 4,
    }
    shape, samples = shape_of(LLAMA), Batch(4, 1280, 4 * 1280, 4 * 256)
    run, card = config(**values), CARDS["a100-80gb"]
    assert estimate(run, shape, card=card).moments == estimate(run, shape, card=card, batch=samples).moments
    every = replace(samples, loss_tokens=samples.tokens)
    assert estimate(run, shape, card=card).peak_bytes < estimate(run, shape, card=card, batch=every).peak_bytes


def test_a_teacher_is_whole_on_each_rank_at_every_moment_and_its_logits_are_compared() -> None:
    shape = shape_of(LLAMA)
    small = shape_of(LLAMA | {"num_hidden_layers": 2})
    values = {"task": "distill", "teacher": "t", "strategy": "zero3", "num_processes": 8, "precision": "bf16"}
    run = config(**values | {"max_length": 1024, "max_completion_length": 256})
    batch = Batch(4, 1280, 4 * 1280, 4 * 256)
    without, beside = (
        estimate(run, one, card=CARDS["a100-80gb"], batch=batch) for one in (shape, replace(shape, teacher=small))
    )
    for moment in ("sampling", "optimizer", "backward"):
        assert beside.moments[moment] - without.moments[moment] == 2 * small.parameters
    quantized = run.model_copy(update={"teacher_quantization": Quantization.NF4})
    smaller = estimate(quantized, replace(shape, teacher=small), card=CARDS["a100-80gb"], batch=batch)
    assert without.moments["sampling"] < smaller.moments["sampling"] < beside.moments["sampling"]
    rewards = estimate(run.model_copy(update={"task": Task.GRPO}), shape, card=CARDS["a100-80gb"], batch=batch)
    logits = 4 * 257 * 8000 * (2 + 2 + 2 * 2)  # of both, and the gradient twice
    assert beside.moments["backward"] > logits and beside.moments["backward"] > rewards.moments["backward"]


def test_vllm_beside_a_process_takes_its_share_while_it_draws_and_without_sleep_always() -> None:
    card, shape = CARDS["h100"], shape_of(LLAMA)
    values = {"task": "grpo", "memory_limit": None}
    alone, sleeps, awake = (
        estimate(config(**values | more), shape, card=card).moments
        for more in ({}, {"generation": "vllm"}, {"generation": "vllm", "vllm_sleep": False})
    )
    share = 0.3 * card.memory_bytes
    assert sleeps["forward"] - alone["forward"] == card.context_bytes
    assert awake["forward"] - alone["forward"] == pytest.approx(share, abs=1)
    assert sleeps["sampling"] == awake["sampling"] > share > alone["sampling"]
    assert sleeps["loading"] == alone["loading"]
