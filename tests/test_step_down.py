"""When memory runs out, the next attempt takes less of it for the same global batch, and goes on from the checkpoint."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tiny import make_model
from trainer_process import train_here

from benchmarks.matrix import Cell, Ranks
from benchmarks.matrix_inputs import make_models
from training.config import RunConfig
from training.events import Finished, Metrics, OutOfMemory, Resumed, decode
from training.failure import is_out_of_memory
from training.rules import Machine
from training.step_down import in_words, next_rung, stepped_down

GPU = Machine("cuda", devices=2, names=["a GPU", "a GPU"], memory_bytes=[2**34, 2**34])


def config(**values: Any) -> RunConfig:
    return RunConfig.model_validate({"model": "m", "data": "d"} | values)


def ladder(
    first: RunConfig, part: str = "forward", *, has_checkpoint: bool = True, **more: Any
) -> list[dict[str, Any]]:
    """Every rung from `first` on."""
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
def test_first_comes_half_the_micro_batch_or_the_next_that_keeps_the_global_batch(
    micro: int, accumulation: int, less: tuple[int, int]
) -> None:
    rung = ladder(config(micro_batch_size=micro, gradient_accumulation_steps=accumulation))[0]
    assert rung == {"micro_batch_size": less[0], "gradient_accumulation_steps": less[1]}


def test_then_activations_are_recomputed_in_more_and_more_layers_and_no_checkpoint_is_made_useless() -> None:
    assert names(ladder(config(micro_batch_size=2))) == [
        "micro batch size 1, gradient accumulation 2",
        "gradient checkpointing selective",
        "gradient checkpointing full",
        "gradient checkpointing offloaded",
    ]


def test_where_one_row_is_most_of_the_batch_recomputing_comes_before_fewer_rows() -> None:
    assert "gradient checkpointing selective" in names(ladder(config(micro_batch_size=2), half_helps=False))[0]


def test_what_should_be_faster_comes_first_where_the_model_and_the_gpu_are_known(tmp_path: Path) -> None:
    model = str(make_model(tmp_path / "model"))
    card = Machine("cuda", devices=1, names=["NVIDIA A100-SXM4-40GB"], memory_bytes=[40 * 2**30])
    first = config(model=model, method="full", micro_batch_size=8)
    rungs = [
        next_rung(first, card, part="forward", has_checkpoint=True, tokens=tokens) for tokens in (8 * 4096, 8 * 16)
    ]
    assert ["micro_batch_size" in (rung or {}) for rung in rungs] == [True, False]


def test_without_a_checkpoint_zero_shards_and_offloads_more_and_more() -> None:
    first = config(micro_batch_size=1, strategy="ddp", num_processes=2, gradient_checkpointing="offloaded")
    assert names(ladder(first, has_checkpoint=False)) == [
        "strategy zero2",
        "offload optimizer cpu",
        "strategy zero3",
        "offload parameters cpu",
    ]
    assert ladder(first) == []


def test_the_optimizer_s_state_does_not_hang_on_the_batch() -> None:
    first = config(micro_batch_size=8, strategy="ddp", num_processes=2)
    assert names(ladder(first, "optimizer", has_checkpoint=False))[0] == "strategy zero2"
    assert ladder(first, "optimizer") == []


def test_weights_that_do_not_fit_are_sharded_themselves() -> None:
    first = config(micro_batch_size=8, strategy="ddp", num_processes=2)
    (rung, *_) = ladder(first, "loading model", has_checkpoint=False)
    assert rung == {"strategy": "zero3", "offload_optimizer": "cpu"}


def test_an_evaluation_keeps_no_activations_to_recompute() -> None:
    assert len(ladder(config(micro_batch_size=4), "evaluation")) == 2


def test_no_rung_breaks_a_rule() -> None:
    assert names(ladder(config(micro_batch_size=2, task="kto"))) == names(ladder(config(micro_batch_size=1)))
    fsdp = config(micro_batch_size=1, strategy="fsdp", num_processes=2)
    assert "gradient checkpointing selective" not in names(ladder(fsdp))


@pytest.mark.parametrize(("old", "new"), [(True, "step_down"), ("true", "step_down"), (False, "fail")])
def test_what_older_configurations_said_of_the_batch_is_still_read(old: Any, new: str) -> None:
    assert config(auto_batch_size=old).on_out_of_memory == new


ROWS, LONG_ROW = 24, 9  # whole batches: several ranks fill up a last one, by the size of a micro batch
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
    """A model, and rows of which one is far longer than the others."""
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


def until_it_fits(attempt: Callable[[dict[str, Any]], bool], folder: Path) -> list[dict[str, Any]]:
    """Attempts with the settings of rung after rung, as a supervisor starts them; the rungs."""
    rungs: list[dict[str, Any]] = []
    while not attempt({name: value for rung in rungs for name, value in rung.items()}):
        told = events(folder, OutOfMemory)
        assert {len(rungs) + 1} == {len({one.time for one in told if one.rank == told[0].rank})}
        if told[-1].step_down is None:
            break
        rungs.append(told[-1].step_down)
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
def test_the_loss_goes_on_as_if_the_run_had_never_been_interrupted(tmp_path: Path, inputs: tuple[Path, Path]) -> None:
    settings = {"micro_batch_size": 4, "packing": "none"}
    train_here(tmp_path / "whole", *inputs, **SETTINGS | settings)
    run = tmp_path / "run"
    rungs = until_it_fits(alone(run, inputs, settings | {"memory_limit": 20}), run)
    assert rungs == [{"micro_batch_size": 2, "gradient_accumulation_steps": 2}]
    (told,) = events(run, OutOfMemory)
    assert LONG_ROW + 1 in told.batches[0]["rows"]
    (resumed,) = events(run, Resumed)
    assert resumed.step == told.step - 1
    assert losses(run) == pytest.approx(losses(tmp_path / "whole"), rel=1e-4)


@pytest.mark.train
def test_where_nothing_fits_the_ladder_ends(tmp_path: Path, inputs: tuple[Path, Path]) -> None:
    run = tmp_path / "run"
    settings = {"micro_batch_size": 2, "gradient_checkpointing": "full", "memory_limit": 2}
    rungs = until_it_fits(alone(run, inputs, settings), run)
    assert names(rungs) == ["micro batch size 1, gradient accumulation 2"]
    assert events(run, OutOfMemory)[-1].step_down is None


@contextmanager
def two_ranks(folder: Path, strategy: str, settings: dict[str, Any]) -> Iterator[Callable[..., bool]]:
    """Trains in a folder on two ranks, and says whether it worked; ranks that failed are started anew, as supervisors do."""
    cell = Cell("sft", "", strategy, "fp32")
    cell.config = SETTINGS | settings | {"strategy": strategy, "num_processes": cell.ranks}
    started: list[Ranks] = []

    def train(run: Path, **changes: Any) -> bool:
        if not started:
            started.append(Ranks(cell, folder / f"ranks-{time.monotonic_ns()}"))
        wanted = Cell("sft", "", strategy, "fp32", config=cell.config | changes)
        outcome, reason = started[0].run(wanted, run)
        if outcome != "worked":
            assert "OutOfMemory" in reason or "closed" in reason, reason
            started.pop().end()
        return outcome == "worked"

    yield train
    for one in started:
        one.end()


@pytest.fixture(scope="module", params=["ddp", "zero2", "zero3"])
def ranks(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, inputs: tuple[Path, Path]
) -> Iterator[Any]:
    settings = {"packing": "none", "micro_batch_size": 4, "model": str(inputs[0]), "data": str(inputs[1])}
    with two_ranks(tmp_path_factory.mktemp("ranks"), request.param, settings) as train:
        yield train


@pytest.mark.train
def test_a_rank_without_room_for_a_row_makes_all_step_down_and_learn_the_same(tmp_path: Path, ranks: Any) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert ranks(whole)
    rungs = until_it_fits(lambda changes: ranks(run, memory_limit=20, **changes), run)
    assert rungs == [{"micro_batch_size": 2, "gradient_accumulation_steps": 2}]
    assert losses(run) == pytest.approx(losses(whole), rel=1e-3)


@pytest.mark.train
def test_a_t5_with_one_long_target_under_zero3_with_offload_survives_it(tmp_path: Path) -> None:
    """A small copy of mt0-xxl: gated GELU, a head of its own, LoRA, everything offloaded; it died at that step each time."""
    rows = [{"prompt": f"count {row}: ", "completion": " ".join(str(row * 37))} for row in range(ROWS)]
    rows[LONG_ROW]["completion"] = "9 " * 200
    data = tmp_path / "targets.jsonl"
    data.write_text("\n".join(json.dumps(row) for row in rows))
    lora = {"method": "lora", "task": "seq2seq", "micro_batch_size": 2, "epochs": 1, "learning_rate": 1e-3}
    offloaded = {"offload_optimizer": "cpu", "offload_param": "cpu"}
    settings = lora | offloaded | {"model": str(make_t5(tmp_path / "models")), "data": str(data)}
    run = tmp_path / "run"
    with two_ranks(tmp_path, "zero3", settings) as train:
        rungs = until_it_fits(lambda changes: train(run, memory_limit=60, **changes), run)
    assert rungs == [{"micro_batch_size": 1, "gradient_accumulation_steps": 2}]
    told = events(run, OutOfMemory)[0]
    assert LONG_ROW + 1 in told.batches[told.rank]["rows"]
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
