"""One device, DDP, ZeRO 1 to 3 and FSDP train and shard, with equal losses."""

from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from trained import Recipe, copy_of, trained
from trainer_process import Trained, start_with_shuffled_gather, start_with_slow_save, start_without_collection

from training.run_folder.checkpoint_layout import CheckpointLayout
from training.run_folder.events import RankLeft

pytestmark = pytest.mark.train

TWO = {"num_processes": 2, "micro_batch_size": 2, "verify_rows": 2, "max_new_tokens": 4, "precision": "fp32"}
TWO_SHARE = {
    "strategy": "zero2",
    "num_processes": 2,
    "sequence_parallel_size": 2,
    "save_steps": 5,
    "save_total_limit": 9,
}
OFFLOAD = {"offload_optimizer": "cpu", "offload_param": "cpu"}


def train(**settings: Any) -> Trained:
    return trained(Recipe(settings=settings))


@pytest.fixture(scope="module")
def inputs() -> tuple[Path, Path]:
    return Recipe().inputs


@pytest.fixture(scope="module")
def single() -> Trained:
    return trained("sft_lora")


def on(strategy: str, **settings: Any) -> Trained:
    """Trained on one device, or on a strategy with two processes."""
    return train(**settings) if strategy == "single" else train(**TWO | settings, strategy=strategy)


@pytest.mark.parametrize(
    ("strategy", "engine", "stage", "parameters_shared", "optimizer_shared"),
    [
        ("ddp", "DistributedDataParallel", None, 1, 1),
        ("zero1", "DeepSpeedEngine", 1, 1, 2),
        ("zero2", "DeepSpeedEngine", 2, 1, 2),
        ("zero3", "DeepSpeedEngine", 3, 2, 2),
        ("fsdp", "FSDPPeftModelForCausalLM", None, 2, 2),
    ],
)
def test_two_processes_shard_as_configured_and_match_one_device(
    single: Trained,
    strategy: str,
    engine: str,
    stage: int | None,
    parameters_shared: int,
    optimizer_shared: int,
) -> None:
    run = on(strategy)
    assert run.losses() == pytest.approx(single.losses(), rel=1e-4)
    assert run.evaluations() == pytest.approx(single.evaluations(), rel=1e-4)
    placed = run.summary["strategy"]
    assert (placed["engine"], placed["stage"], placed["world_size"]) == (engine, stage, 2)
    shards = run.shards()
    assert set(shards) == {event.rank for event in run.of(RankLeft)} == {0, 1}
    assert_saved_as_trained(run)
    for shard in shards.values():
        assert shard.parameter_shard * parameters_shared == pytest.approx(shard.parameters, rel=0.01)
        assert shard.optimizer_shard * optimizer_shared == pytest.approx(shard.optimized, rel=0.01)


@pytest.mark.parametrize(
    "strategy",
    [
        "single",
        pytest.param("ddp", marks=pytest.mark.nightly),
        "zero3",
        pytest.param("fsdp", marks=pytest.mark.nightly),
    ],
)
def test_answers_at_evaluations_are_scored_and_change_no_loss_by_one_bit(strategy: str) -> None:
    answering = on(strategy, eval_answers=2, eval_metrics="f1, exact_match", verify_rows=0)
    plain = on(strategy)
    assert (answering.losses(), answering.evaluations()) == (plain.losses(), plain.evaluations())
    assert answering.gradient_norms() == plain.gradient_norms()
    scores = answering.series("eval_f1")
    assert scores.keys() == answering.series("eval_exact_match").keys() == answering.evaluations().keys()
    assert all(0 <= value <= 1 for value in scores.values())


def assert_saved_as_trained(run: Trained) -> None:
    """The saved result answers as the sharded model did before it was saved."""
    parity = run.summary["parity"]
    assert parity["equal"], parity
    (form,) = parity["forms"].values()
    assert (form["rows"], form["answers_equal"]) == (2, True)
    assert form["max_logit_difference"] < 1e-4


@pytest.mark.parametrize("method", ["ia3", "ln_tuning"])
def test_fsdp_saves_an_adapter_that_is_not_a_lora(method: str) -> None:
    run = on("fsdp", method=method, max_steps=2, eval_steps=2, save_steps=2)  # right after the evaluation
    assert_saved_as_trained(run)
    assert CheckpointLayout.read(run.run_dir / "checkpoints/checkpoint-2").parameters  # type: ignore[union-attr]


def test_each_save_under_zero_3_frees_the_weights_that_it_gathered(tmp_path: Path, inputs: tuple[Path, Path]) -> None:
    settings = TWO | {
        "strategy": "zero3",
        "method": "full",
        "max_steps": 3,
        "eval_steps": 0,
        "verify_rows": 0,
        "memory_limit": 65_536,
    }
    runs = [start_without_collection(tmp_path / f"{steps}", *inputs, **settings, save_steps=steps) for steps in (0, 1)]
    assert [run.finish() for run in runs] == [0, 0], runs[-1].log()
    peaks = [max(run.summary["memory"]["peak_bytes"]) for run in runs]
    assert peaks[0] == pytest.approx(peaks[1], rel=0.01)


def test_a_result_may_take_longer_to_write_than_a_collective(tmp_path: Path, inputs: tuple[Path, Path]) -> None:
    settings = {**TWO, "strategy": "ddp", "max_steps": 1, "eval_steps": 0}
    run = start_with_slow_save(tmp_path, *inputs, **settings)
    assert run.finish() == 0, run.log()
    assert run.summary["parity"]["equal"]


@pytest.mark.parametrize("strategy", ["zero3", "fsdp"])
def test_shards_that_are_put_together_in_another_order_are_found(
    tmp_path: Path, inputs: tuple[Path, Path], strategy: str
) -> None:
    settings = {**TWO, "strategy": strategy, "method": "full", "max_steps": 1, "eval_steps": 0}
    run = start_with_shuffled_gather(tmp_path, *inputs, **settings)
    assert run.finish() == 0, run.log()
    parity = run.summary["parity"]
    assert not parity["equal"]
    assert parity["forms"]["model"]["max_logit_difference"] > 0.1


@pytest.mark.parametrize(
    ("strategy", "ranks"), [("zero2", 2), ("zero3", 2), pytest.param("zero2", 4, marks=pytest.mark.nightly)]
)
def test_sequence_parallelism_matches_one_device(single: Trained, strategy: str, ranks: int) -> None:
    """Pairs of processes share sequences."""
    shared = on(strategy, num_processes=ranks, micro_batch_size=8 // ranks, sequence_parallel_size=2, max_length=64)
    assert_saved_as_trained(shared)
    assert shared.losses() == pytest.approx(single.losses(), rel=1e-5)
    assert shared.evaluations() == pytest.approx(single.evaluations(), rel=1e-5)
    assert shared.gradient_norms() == pytest.approx(single.gradient_norms(), rel=1e-3)


def test_sequence_parallelism_takes_every_step_on_the_rows_of_one_device(tmp_path: Path) -> None:
    """29 rows in batches of 4 with two micro steps: an epoch ends with a step of one micro batch of 1 row, or of 5 rows."""
    settings = {
        "eval_split": 0,
        "max_samples": 29,
        "epochs": 2,
        "max_steps": None,
        "eval_steps": 0,
        "precision": "fp32",
    }
    settings |= {"micro_batch_size": 4, "gradient_accumulation_steps": 2, "verify_rows": 0}
    single = train(**settings)
    assert list(single.losses()) == list(range(1, 9))
    recipe = Recipe(settings=settings | TWO_SHARE)
    assert trained(recipe).losses() == pytest.approx(single.losses(), rel=1e-5)
    run_dir = copy_of(recipe, tmp_path / "run", "checkpoint-8", "events.jsonl", "adapter")
    again = recipe.train(run_dir)
    assert again.losses() == pytest.approx({step: single.losses()[step] for step in (6, 7, 8)}, rel=1e-5)


FULL = {"method": "full", "learning_rate": 1e-3}


@pytest.mark.parametrize(
    "settings", [{"strategy": "zero3", **OFFLOAD}, {"strategy": "fsdp", "offload_param": "cpu"}], ids=["zero3", "fsdp"]
)
def test_sharded_and_offloaded_training_matches_one_device(settings: dict[str, str]) -> None:
    offloaded, single_full = train(gradient_checkpointing=True, **TWO, **settings, **FULL), train(**FULL)
    assert_saved_as_trained(offloaded)
    assert offloaded.losses() == pytest.approx(single_full.losses(), rel=1e-4)
    shard = offloaded.shards()[1]
    assert shard.parameter_shard * 2 == pytest.approx(shard.parameters, rel=0.01)
    created, expected = (safe_open(item.run_dir / "model/model.safetensors", "pt") for item in (offloaded, single_full))
    assert set(created.keys()) == set(expected.keys())
    for name in expected.keys():  # noqa: SIM118 - it is no dict
        assert created.get_tensor(name).shape == expected.get_tensor(name).shape
        assert created.get_tensor(name).sub(expected.get_tensor(name)).abs().max() < 1e-3


def test_the_summary_has_all_values(single: Trained) -> None:
    summary = single.summary
    assert summary["trainable_parameters"] == 8192
    assert summary["total_parameters"] == 123_840
    assert summary["trainable_percent"] == pytest.approx(100 * 8192 / 123_840)
    assert summary["adapter_bytes"] == (single.run_dir / "adapter/adapter_model.safetensors").stat().st_size
    assert [len(summary["memory"][f"{when}_bytes"]) for when in ("before", "after", "peak")] == [1, 1, 1]
    assert summary["memory"]["peak_bytes"][0] >= summary["memory"]["before_bytes"][0] > 0
    assert summary["tokens_per_second"] > summary["samples_per_second"] > 0
    assert summary["final_loss"] == pytest.approx(single.losses()[6])
    assert summary["eval_loss"] == pytest.approx(single.evaluations()[6])
