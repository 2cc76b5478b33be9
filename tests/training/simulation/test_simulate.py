"""A simulated step predicts the memory of the real step."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_process import train_here

from benchmarks.matrix.inputs import byte_tokenizer
from training.config.choices import Precision
from training.config.run_config import RunConfig
from training.errors import UserError
from training.simulation.batches import PlacedBatch, SimulationRequest
from training.simulation.simulate import POINTS, Simulation, simulate

LENGTH = 64
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", {"n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 128}),
    "llama": (
        "Llama",
        {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 2, "num_attention_heads": 4},
    ),
    "qwen3": (
        "Qwen3",
        {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 32}
        | {"num_key_value_heads": 2, "tie_word_embeddings": True},
    ),
    "t5": (
        "T5",
        {"d_model": 128, "d_kv": 32, "d_ff": 352, "num_layers": 1, "num_heads": 4, "decoder_start_token_id": 0},
    ),
    "mixtral": (
        "Mixtral",
        {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
        | {"num_key_value_heads": 2, "num_local_experts": 4},
    ),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import transformers

    folder = tmp_path_factory.mktemp("shapes")
    for name, (kind, shape) in SHAPES.items():
        torch.manual_seed(0)
        ends = {"vocab_size": 1000, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1}
        config = getattr(transformers, f"{kind}Config")(**shape, **ends)
        auto = transformers.AutoModelForSeq2SeqLM if name == "t5" else transformers.AutoModelForCausalLM
        auto.from_config(config).save_pretrained(folder / name)
        byte_tokenizer().save_pretrained(folder / name)
    row = {"prompt": "a" * (LENGTH // 2), "completion": "b" * LENGTH}
    (folder / "rows.jsonl").write_text((json.dumps(row) + "\n") * 8, encoding="utf-8")
    return folder


def settings(home: Path, shape: str, **more: Any) -> dict[str, Any]:
    values = {
        "task": "seq2seq" if shape == "t5" else "sft",
        "max_length": LENGTH,
        "micro_batch_size": 2,
        "max_steps": 2,
    }
    values |= {"eval_split": 0, "eval_steps": 0, "save_steps": 0, "memory_limit": 4096, "learning_rate": 1e-4}
    return values | {"target_modules": "all-linear"} | more


def simulated(home: Path, shape: str, device: str = "cpu", precision: str = "fp32", **more: Any) -> Simulation:
    return _simulated(home, shape, device, precision, tuple(more.items()))


@cache
def _simulated(home: Path, shape: str, device: str, precision: str, more: tuple[tuple[str, Any], ...]) -> Simulation:
    config = RunConfig.model_validate(
        settings(home, shape, **dict(more)) | {"model": str(home / shape), "data": str(home / "rows.jsonl")}
    )
    source = LENGTH // 2 + 1 if shape == "t5" else LENGTH
    rows: dict[str, Any] = {"lengths": [source] * 2, "targets": [LENGTH] * 2, "labeled": [LENGTH // 2] * 2}
    return simulate(SimulationRequest(config, **rows, device=device, precision=Precision(precision)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shape", "method", "checkpointing"),
    [
        ("gpt2", "full", "full"),
        ("llama", "full", "none"),
        ("llama", "lora", "full"),
        pytest.param("qwen3", "lora", "none", marks=pytest.mark.nightly),
        ("t5", "full", "full"),
        ("mixtral", "full", "none"),
    ],
)
def test_the_peak_matches_a_measured_run(
    home: Path, tmp_path: Path, shape: str, method: str, checkpointing: str
) -> None:
    asked = {"method": method, "gradient_checkpointing": checkpointing}
    run = train_here(tmp_path, home / shape, home / "rows.jsonl", **settings(home, shape, **asked))
    (counted,) = run.summary["memory"]["peak_bytes"]
    assert simulated(home, shape, **asked).peak_bytes == pytest.approx(counted, rel=0.02)


def preferences(task: str) -> str:
    """Rows whose sequences have the maximum length, as the forecast takes those of pairs."""
    asked, answer = "a" * (LENGTH // 2), "b" * LENGTH
    pair = {"prompt": asked, "chosen": answer, "rejected": "c" * LENGTH}
    rows = [{"prompt": asked, "completion": answer, "label": n % 2 == 0} if task == "kto" else pair for n in range(8)]
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize(
    ("task", "more"),
    [
        pytest.param("dpo", {"method": "full", "optimizer": "adamw_8bit"}, marks=pytest.mark.nightly),
        ("dpo", {"method": "lora", "gradient_checkpointing": "selective"}),
        ("kto", {"method": "full"}),
        ("orpo", {"method": "lora"}),
        ("reward", {"method": "lora"}),
    ],
)
def test_the_peak_of_a_preference_task_matches_a_measured_run(
    home: Path, tmp_path: Path, task: str, more: dict[str, Any]
) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text(preferences(task), encoding="utf-8")
    asked = {"task": task, "gradient_checkpointing": "none", "lora_dropout": 0.0} | more
    run = train_here(tmp_path, home / "llama", data, **settings(home, "llama", **asked))
    (counted,) = run.summary["memory"]["peak_bytes"]
    config = RunConfig.model_validate(settings(home, "llama", model=str(home / "llama"), data=str(data), **asked))
    request = SimulationRequest(config, [LENGTH] * 2, labeled=[LENGTH // 2] * 2, device="cpu", precision=Precision.FP32)
    assert simulate(request).peak_bytes == pytest.approx(counted, rel=0.01)


@pytest.mark.parametrize(
    "more", [{"method": "lora", "policy_loss": "dapo"}, {"method": "full", "policy_loss": "dr_grpo"}]
)
def test_the_peak_of_samples_of_maximum_length_matches_a_measured_run(
    home: Path, tmp_path: Path, more: dict[str, Any]
) -> None:
    longest = 16
    data = tmp_path / "rows.jsonl"
    row = {"prompt": "a" * (LENGTH - longest), "completion": "b"}
    data.write_text("".join(json.dumps(row) + "\n" for _ in range(8)), encoding="utf-8")
    asked = {
        "task": "grpo",
        "rewards": "json_valid",
        "num_generations": 2,
        "max_completion_length": longest,
        "probe": "on",
    }
    asked |= {"baseline_prompts": 0, "gradient_checkpointing": "none"} | more
    run = train_here(tmp_path, home / "llama", data, **settings(home, "llama", **asked))
    (counted,) = run.summary["memory"]["peak_bytes"]
    config = RunConfig.model_validate(settings(home, "llama", model=str(home / "llama"), data=str(data), **asked))
    request = SimulationRequest(config, [LENGTH] * 2, device="cpu", precision=Precision.FP32)
    assert simulate(request).peak_bytes == pytest.approx(counted, rel=0.02)


def test_samples_are_not_simulated_with_sharded_weights(home: Path) -> None:
    with pytest.raises(UserError, match="sharded weights"):
        simulated(home, "llama", task="grpo", num_generations=2, strategy="zero3", num_processes=2)


def test_the_fused_head_of_preference_tasks_takes_less_on_a_gpu(home: Path) -> None:
    on = {device: simulated(home, "llama", device, task="dpo", method="lora").peak_bytes for device in ("cpu", "cuda")}
    assert on["cuda"] < on["cpu"]


def test_a_sharded_reference_model_is_not_simulated(home: Path) -> None:
    with pytest.raises(UserError, match="sharded reference model"):
        simulated(home, "llama", task="dpo", method="full", strategy="zero3", num_processes=2)


def test_the_first_step_has_no_optimizer_state_yet(home: Path) -> None:
    config = RunConfig.model_validate(
        settings(home, "llama", method="full", model=str(home / "llama"), data=str(home / "rows.jsonl"))
    )
    first, later = PlacedBatch(True, True, [LENGTH] * 2), PlacedBatch(False, True, [8] * 2)

    def peak(lengths: list[int], *places: PlacedBatch) -> int:
        return simulate(
            SimulationRequest(config, lengths, places=list(places), device="cpu", precision=Precision.FP32)
        ).peak_bytes

    assert peak([8] * 2) <= peak([LENGTH] * 2, first, later) < peak([LENGTH] * 2)


def test_the_peak_has_kinds_module_and_line(home: Path) -> None:
    simulation = simulated(home, "llama", method="full")
    weights = sum(parameter.numel() for parameter in _loaded(home).parameters()) * 4
    assert simulation.parts["weights"] == pytest.approx(weights, rel=0.02)
    assert simulation.parts["optimizer"] == pytest.approx(2 * weights, rel=0.02)
    assert simulation.peak_bytes == sum(simulation.parts.values())
    assert "modeling_llama.py:" in simulation.line and simulation.phase == "backward"


def _loaded(home: Path) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    loaded: torch.nn.Module = AutoModelForCausalLM.from_pretrained(home / "llama")
    return loaded


def test_the_timeline_is_short_and_contains_the_peak(home: Path) -> None:
    simulation = simulated(home, "llama", method="lora")
    assert len(simulation.timeline) <= 2 * POINTS + 1
    assert max(sum(point["bytes"].values()) for point in simulation.timeline) == simulation.peak_bytes
    assert {point["phase"] for point in simulation.timeline} >= {"forward", "backward", "optimizer"}


def test_cuda_s_attention_and_dropout_keep_less_than_a_cpu_s(home: Path) -> None:
    on = {device: simulated(home, "gpt2", device, method="full").parts["activations"] for device in ("cpu", "cuda")}
    assert on["cuda"] < 0.9 * on["cpu"]


@pytest.mark.parametrize(("method", "quantization"), [("qlora", "4bit"), ("lora", "none")])
def test_sixteen_and_four_bit_weights_take_less_memory(home: Path, method: str, quantization: str) -> None:
    whole = simulated(home, "llama", method="lora").parts["weights"]
    less = simulated(home, "llama", "cuda", "bf16", method=method, quantization=quantization).parts["weights"]
    assert less < 0.65 * whole


@pytest.mark.parametrize("strategy", [pytest.param("zero2", marks=pytest.mark.nightly), "zero3", "fsdp"])
def test_ranks_share_the_optimizer_s_state(home: Path, strategy: str) -> None:
    alone = simulated(home, "llama", "cuda", method="full").parts["optimizer"]
    shared = simulated(home, "llama", "cuda", method="full", strategy=strategy, num_processes=4)
    assert shared.parts["optimizer"] < 0.8 * alone
    assert shared.peak_bytes == sum(shared.parts.values())


@pytest.mark.parametrize(
    ("settings", "kind", "most"),
    [
        ({"optimizer": "adamw_torchao_8bit"}, "optimizer", 0.3),
        ({"optimizer": "paged_adamw_8bit"}, "optimizer", 0),
        ({"strategy": "zero2", "num_processes": 2, "offload_optimizer": "cpu"}, "optimizer", 0),
        ({"strategy": "fsdp", "num_processes": 2, "offload_param": "cpu"}, "weights", 0.01),
    ],
)
def test_quantized_and_offloaded_memory_is_not_on_the_device(home: Path, settings: Any, kind: str, most: float) -> None:
    usual = simulated(home, "llama", "cuda", method="full").parts[kind]
    assert simulated(home, "llama", "cuda", method="full", **settings).parts.get(kind, 0) <= most * usual


def test_activations_in_host_memory_are_not_on_the_device(home: Path) -> None:
    def kept(kind: str) -> int:
        timeline = simulated(home, "llama", "cuda", method="lora", gradient_checkpointing=kind).timeline
        last = [point for point in timeline if point["phase"] == "forward"][-1]
        return int(last["bytes"]["activations"])

    assert kept("offloaded") < 0.8 * kept("full")


def test_a_gpu_s_allocator_reserves_more_than_lives_and_needs_less_than_it_reserves(home: Path) -> None:
    done = simulated(home, "gpt2", "cuda", method="full")
    assert done.peak_bytes <= done.needed_bytes <= done.reserved_bytes
    assert done.reserved_bytes % 2**21 == done.needed_bytes % 2**21 == 0
    on_cpu = simulated(home, "gpt2", "cpu", method="full")
    assert on_cpu.reserved_bytes == on_cpu.needed_bytes == on_cpu.peak_bytes


def test_a_folder_without_a_model_is_refused_by_field(home: Path) -> None:
    with pytest.raises(UserError, match="model"):
        simulated(home, "nothing")
