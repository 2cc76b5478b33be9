"""After an out-of-memory error, the next attempt resumes with less memory and the same global batch."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny import make_model
from trainer_process import start, train_here

from benchmarks.matrix.inputs import make_models
from training.config.fields import in_words
from training.config.machine import Machine
from training.config.run_config import RunConfig, stepped_down
from training.errors import is_out_of_memory
from training.forecast.step_down import next_rung, next_rung_after
from training.run_folder import checkpoints
from training.run_folder.events import Finished, Metrics, OutOfMemory, Resumed, decode

GPU = Machine("cuda", devices=2, names=["a GPU", "a GPU"], memory_bytes=[2**34, 2**34])


def config(**values: Any) -> RunConfig:
    return RunConfig.model_validate({"model": "m", "data": "d"} | values)


def ladder(
    first: RunConfig, part: str = "forward", *, has_checkpoint: bool = True, **more: Any
) -> list[dict[str, Any]]:
    """Returns every rung after `first`."""
    rungs, standing = [], first
    while rung := next_rung(standing, GPU, part=part, has_checkpoint=has_checkpoint, **more):
        rungs.append(rung)
        standing = stepped_down(standing, rung)
        assert standing.global_batch_size == first.global_batch_size
    return rungs


def names(rungs: list[dict[str, Any]]) -> list[str]:
    return [in_words(rung) for rung in rungs]


@pytest.mark.parametrize(
    ("micro", "accumulation", "less"),
    [(8, 1, (4, 2)), (4, 3, (2, 6)), (6, 1, (3, 2)), (3, 1, (1, 3)), (5, 2, (2, 5)), (2, 1, (1, 2))],
)
def test_the_first_rung_is_a_smaller_micro_batch_with_the_same_global_batch(
    micro: int, accumulation: int, less: tuple[int, int]
) -> None:
    rung = ladder(config(micro_batch_size=micro, gradient_accumulation_steps=accumulation))[0]
    assert rung == {"micro_batch_size": less[0], "gradient_accumulation_steps": less[1]}


def test_the_next_rungs_recompute_more_layers_and_keep_checkpoints_usable() -> None:
    assert names(ladder(config(micro_batch_size=2))) == [
        "micro batch size 1, gradient accumulation 2",
        "gradient checkpointing selective",
        "gradient checkpointing full",
        "gradient checkpointing offloaded",
    ]


def test_recomputing_comes_before_fewer_rows_if_one_row_dominates_the_batch() -> None:
    assert "gradient checkpointing selective" in names(ladder(config(micro_batch_size=2), half_helps=False))[0]


@pytest.mark.slow
def test_rungs_are_ordered_by_speed_if_model_and_gpu_are_known(tmp_path: Path) -> None:
    model = str(make_model(tmp_path / "model"))
    card = Machine("cuda", devices=1, names=["NVIDIA A100-SXM4-40GB"], memory_bytes=[40 * 2**30])
    first = config(model=model, method="full", micro_batch_size=8)
    rungs = [
        next_rung(first, card, part="forward", has_checkpoint=True, tokens=tokens) for tokens in (8 * 4096, 8 * 16)
    ]
    assert ["micro_batch_size" in (rung or {}) for rung in rungs] == [True, False]


def test_without_a_checkpoint_the_rungs_shard_and_offload_more() -> None:
    first = config(micro_batch_size=1, strategy="ddp", num_processes=2, gradient_checkpointing="offloaded")
    assert names(ladder(first, has_checkpoint=False)) == [
        "strategy zero2",
        "offload optimizer cpu",
        "strategy zero3",
        "offload parameters cpu",
    ]
    assert ladder(first) == []


def test_an_optimizer_state_out_of_memory_skips_the_batch_rungs() -> None:
    first = config(micro_batch_size=8, strategy="ddp", num_processes=2)
    assert names(ladder(first, "optimizer", has_checkpoint=False))[0] == "strategy zero2"
    assert ladder(first, "optimizer") == []


def test_weights_that_do_not_fit_are_sharded() -> None:
    first = config(micro_batch_size=8, strategy="ddp", num_processes=2)
    (rung, *_) = ladder(first, "loading model", has_checkpoint=False)
    assert rung == {"strategy": "zero3", "offload_optimizer": "cpu"}


def test_an_evaluation_skips_the_checkpointing_rungs() -> None:
    assert len(ladder(config(micro_batch_size=4), "evaluation")) == 2


def test_no_rung_breaks_a_rule() -> None:
    assert names(ladder(config(micro_batch_size=2, task="kto"))) == names(ladder(config(micro_batch_size=1)))
    fsdp = config(micro_batch_size=1, strategy="fsdp", num_processes=2)
    assert "gradient checkpointing selective" not in names(ladder(fsdp))


@pytest.mark.parametrize(("old", "new"), [(True, "step_down"), ("true", "step_down"), (False, "fail")])
def test_batch_settings_of_older_configurations_are_still_read(old: Any, new: str) -> None:
    assert config(auto_batch_size=old).on_out_of_memory == new


ROWS, LONG_ROW = 24, 9  # full batches: several ranks would fill up the last one
SETTINGS: dict[str, Any] = {
    "method": "full",
    "epochs": 2,
    "max_steps": None,
    "eval_split": 0,
    "eval_steps": 0,
    "logging_steps": 1,
    "save_steps": 1,
    "save_total_limit": 9,
    "max_length": 480,
    "learning_rate": 1e-3,
    "precision": "fp32",
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and rows with one that is much longer than the others."""
    folder = tmp_path_factory.mktemp("inputs")
    rows = [{"prompt": f"row {row}: ", "completion": "abc" * (1 + row % 5)} for row in range(ROWS)]
    rows[LONG_ROW]["completion"] = "x" * 400
    data = folder / "rows.jsonl"
    data.write_text("\n".join(json.dumps(row) for row in rows))
    return make_model(folder / "model"), data


def events(folder: Path, kind: type[Any]) -> list[Any]:
    with (folder / "events.jsonl").open("rb") as lines:
        return [event for line in lines if isinstance(event := decode(line), kind)]


def losses(folder: Path) -> dict[int, float]:
    return {event.step: event.values["loss"] for event in events(folder, Metrics) if "loss" in event.values}


def proposed(folder: Path) -> dict[str, Any] | None:
    """Returns the rung that the supervisor chooses after the last attempt."""
    ran_with = RunConfig.model_validate_json((folder / "config.json").read_text())
    has_checkpoint = any(checkpoints.sealed(folder))
    return next_rung_after(events(folder, OutOfMemory)[-1], ran_with, Machine(), has_checkpoint=has_checkpoint)


def until_it_fits(attempt: Callable[[dict[str, Any]], bool], folder: Path) -> list[dict[str, Any]]:
    """Runs attempts with one rung after another, like a supervisor. Returns the rungs."""
    rungs: list[dict[str, Any]] = []
    while not attempt({name: value for rung in rungs for name, value in rung.items()}):
        reports = events(folder, OutOfMemory)
        assert {len(rungs) + 1} == {len({report.time for report in reports if report.rank == reports[0].rank})}
        if not (rung := proposed(folder)):
            break
        rungs.append(rung)
    return rungs


def alone(folder: Path, inputs: tuple[Path, Path], settings: dict[str, Any]) -> Callable[[dict[str, Any]], bool]:
    def attempt(changes: dict[str, Any]) -> bool:
        try:
            train_here(folder, *inputs, **SETTINGS | settings | changes)
        except Exception as error:
            assert is_out_of_memory(error)
            return False
        return True

    return attempt


@pytest.mark.train
def test_the_losses_continue_as_without_an_interruption(tmp_path: Path, inputs: tuple[Path, Path]) -> None:
    settings = {"micro_batch_size": 4, "packing": "none"}
    train_here(tmp_path / "whole", *inputs, **SETTINGS | settings)
    run = tmp_path / "run"
    rungs = until_it_fits(alone(run, inputs, settings | {"memory_limit": 20}), run)
    assert rungs == [{"micro_batch_size": 2, "gradient_accumulation_steps": 2}]
    (report,) = events(run, OutOfMemory)
    assert LONG_ROW + 1 in report.batches[0]["rows"]
    (resumed,) = events(run, Resumed)
    assert resumed.step == report.step - 1
    assert losses(run) == pytest.approx(losses(tmp_path / "whole"), rel=1e-4)


@pytest.mark.train
def test_the_rungs_end_if_nothing_fits(tmp_path: Path, inputs: tuple[Path, Path]) -> None:
    run = tmp_path / "run"
    settings = {"micro_batch_size": 2, "gradient_checkpointing": "full", "memory_limit": 2}
    rungs = until_it_fits(alone(run, inputs, settings), run)
    assert names(rungs) == ["micro batch size 1, gradient accumulation 2"]
    assert proposed(run) is None


def two_ranks(run: Path, inputs: tuple[Path, Path], **settings: Any) -> bool:
    """Trains in a folder on two ranks. Returns False if they were out of memory."""
    trained = start(run, *inputs, **SETTINGS | {"num_processes": 2} | settings)
    worked = trained.finish() == 0
    assert worked or events(run, OutOfMemory), trained.log()
    return worked


@pytest.mark.train
@pytest.mark.parametrize("strategy", ["ddp", pytest.param("zero3", marks=pytest.mark.nightly)])
def test_a_rank_without_memory_makes_all_ranks_step_down_with_the_same_losses(
    tmp_path: Path, inputs: tuple[Path, Path], strategy: str
) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    settings = {"packing": "none", "micro_batch_size": 4, "strategy": strategy}
    train_here(whole, *inputs, **SETTINGS | {"packing": "none", "micro_batch_size": 2 * 4})
    rungs = until_it_fits(lambda changes: two_ranks(run, inputs, **settings | {"memory_limit": 20} | changes), run)
    assert rungs == [{"micro_batch_size": 2, "gradient_accumulation_steps": 2}]
    assert losses(run) == pytest.approx(losses(whole), rel=1e-3)


@pytest.mark.nightly
@pytest.mark.train
def test_a_t5_under_zero3_with_offload_survives_one_long_target(tmp_path: Path) -> None:
    """A small mt0-xxl: gated GELU, untied head, LoRA, everything offloaded. The reported run failed at that step each time."""
    rows = [{"prompt": f"count {row}: ", "completion": " ".join(str(row * 37))} for row in range(ROWS)]
    rows[LONG_ROW]["completion"] = "9 " * 200
    data = tmp_path / "targets.jsonl"
    data.write_text("\n".join(json.dumps(row) for row in rows))
    lora = {"method": "lora", "task": "seq2seq", "micro_batch_size": 2, "epochs": 1, "learning_rate": 1e-3}
    offloaded = {"offload_optimizer": "cpu", "offload_param": "cpu"}
    settings = lora | offloaded | {"strategy": "zero3", "memory_limit": 60}
    model, run = make_t5(tmp_path / "models"), tmp_path / "run"
    rungs = until_it_fits(lambda changes: two_ranks(run, (model, data), **settings | changes), run)
    assert rungs == [{"micro_batch_size": 1, "gradient_accumulation_steps": 2}]
    report = events(run, OutOfMemory)[0]
    assert LONG_ROW + 1 in report.batches[report.rank]["rows"]
    assert list(losses(run)) == list(range(1, ROWS // 4 + 1))
    assert events(run, Finished)[-1].outcome == "finished"


def make_t5(home: Path) -> Path:
    from transformers import T5Config, T5ForConditionalGeneration

    home.mkdir()
    _, small = make_models(home)
    size = {"d_model": 64, "d_kv": 16, "d_ff": 160, "num_layers": 3, "num_heads": 4, "vocab_size": 512}
    kind = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "decoder_start_token_id": 0}
    T5ForConditionalGeneration(T5Config(**size, **kind, pad_token_id=0, eos_token_id=1)).save_pretrained(small)
    return small


def test_vllm_beside_a_process_gives_up_memory_before_the_model_does() -> None:
    first = config(task="grpo", generation="vllm", vllm_sleep=False, num_generations=2, micro_batch_size=2)
    assert ladder(first)[:4] == [
        {"vllm_sleep": True}, {"vllm_memory": 0.15}, {"generation": "model"},
        {"micro_batch_size": 1, "gradient_accumulation_steps": 2},
    ]  # fmt: skip
    elsewhere = first.model_copy(update={"vllm_url": "http://host:8000"})
    assert "micro_batch_size" in ladder(elsewhere)[0]
