"""Live storages are counted as a device's allocator would count them, and a budget of them runs out as a device does."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import make_data, make_model
from trainer_process import start, train_here

from training.events import Finished
from training.failure import is_out_of_memory
from training.live_memory import LiveStorages
from training.memory_limit import counted_memory
from training.report import peak_bytes, used_bytes

GIB = 2**30


def test_a_storage_counts_once_in_blocks_of_512_bytes_until_its_last_view_is_gone() -> None:
    with LiveStorages() as live:
        tensor = torch.empty(100)
        view = tensor[5:]
        assert live.current == 512
        del tensor
        assert live.current == 512
        del view
    assert (live.current, live.peak) == (0, 512)


def test_a_storage_that_was_there_before_counts_when_it_is_held_or_met() -> None:
    weights, bias = torch.nn.Linear(256, 256), torch.zeros(256)
    with LiveStorages() as live:
        live.hold(weights, "weights")
        assert live.by_kind["weights"] == 256 * 256 * 4 + 256 * 4
        _ = bias + 1
        assert live.by_kind["other"] == 2048


def test_tensors_on_meta_count_nothing() -> None:
    with LiveStorages() as live:
        torch.ones(1000, device="meta") + torch.ones(1000, device="meta")
    assert live.peak == 0


def test_what_is_freed_and_allocated_without_an_operation_is_seen() -> None:
    with LiveStorages() as live:
        tensor = torch.empty(1024)
        tensor.untyped_storage().resize_(0)
        assert live.current == 0
        tensor.untyped_storage().resize_(4096)
        assert live.current == 4096


def test_a_training_step_holds_weights_gradients_moments_and_activations_at_once() -> None:
    layer = torch.nn.Linear(512, 512, bias=False)
    weights = 512 * 512 * 4
    optimizer = torch.optim.AdamW(layer.parameters(), fused=True)
    with LiveStorages() as live:
        live.hold(layer, "weights")
        for _ in range(2):
            layer(torch.ones(8, 512)).sum().backward()
            with live.making("optimizer"):
                optimizer.step()
            optimizer.zero_grad()
    assert live.by_kind["weights"] == weights
    assert live.by_kind["optimizer"] - 512 == 2 * weights  # and the number of the step
    assert 4 * weights < live.peak < 4.2 * weights


def test_past_the_budget_an_operation_raises_what_a_full_gpu_raises() -> None:
    with LiveStorages(budget=GIB) as live:
        kept = torch.empty(2**26)
        with pytest.raises(
            torch.OutOfMemoryError, match=r"Tried to allocate 2.00 GiB\. The CPU memory budget"
        ) as raised:
            torch.empty(2**29)
        assert is_out_of_memory(raised.value)
        assert "1.00 GiB of which 768.00 MiB is free" in str(raised.value)
        assert live.current == kept.nbytes


def test_what_a_run_reports_as_memory_is_what_is_counted() -> None:
    resident = used_bytes()
    with counted_memory():
        torch.empty(1024)
        assert (used_bytes(), peak_bytes()) == (0, 4096)
    assert resident > 2**25 and used_bytes() > 2**25


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    home = tmp_path_factory.mktemp("inputs")
    return make_model(home / "model"), make_data(home / "data.jsonl")


FULL: dict[str, Any] = {"method": "full", "max_steps": 2, "eval_split": 0, "learning_rate": 1e-4}


def test_a_run_under_a_limit_reports_the_peak_of_its_live_storages(tmp_path: Path, inputs: tuple[Path, Path]) -> None:
    trained = train_here(tmp_path, *inputs, **FULL, memory_limit=1024)
    state = 4 * 4 * trained.summary["total_parameters"]  # weights, gradients and two moments
    (peak,) = trained.summary["memory"]["peak_bytes"]
    assert state < peak < 2 * state
    assert max(trained.series("memory_peak").values()) <= peak


def test_a_run_that_needs_more_than_its_limit_is_out_of_memory(tmp_path: Path, inputs: tuple[Path, Path]) -> None:
    with pytest.raises(torch.OutOfMemoryError, match="CPU memory budget"):
        train_here(tmp_path, *inputs, **FULL, memory_limit=1)


@pytest.mark.train
@pytest.mark.parametrize("strategy", ["ddp", "zero3", "fsdp"])
def test_what_the_ranks_share_out_counts_on_each(tmp_path: Path, inputs: tuple[Path, Path], strategy: str) -> None:
    settings = FULL | {"strategy": strategy, "num_processes": 2, "memory_limit": 1024}
    run = start(tmp_path / "run", *inputs, **settings)
    assert run.finish() == 0, run.log()
    assert run.of(Finished)
    weights = 4 * run.summary["total_parameters"]
    # DDP has buckets beside weights, gradients and two moments; ZeRO-3 and FSDP halve these, and gather layers whole.
    least = {"ddp": 5, "zero3": 2.5, "fsdp": 2}[strategy]
    for peak in run.summary["memory"]["peak_bytes"]:
        assert least * weights < peak < (least + 4.5) * weights
