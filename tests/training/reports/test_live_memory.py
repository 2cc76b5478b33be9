"""Live storages count as in a device's allocator, and exceeding the budget raises the same error."""

from pathlib import Path
from typing import Any

import pytest
import torch
from trained import Recipe, trained
from trainer_process import train_here

from training.errors import is_out_of_memory
from training.reports.live_memory import LiveStorages, counted_memory
from training.reports.report import peak_bytes, used_bytes
from training.run_folder.events import Finished

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


def test_an_existing_storage_counts_when_it_is_held_or_used() -> None:
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


def test_resizing_a_storage_without_an_operation_is_counted() -> None:
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
            live.kind = "optimizer"
            optimizer.step()
            live.kind = "other"
            optimizer.zero_grad()
    assert live.by_kind["weights"] == weights
    assert live.by_kind["optimizer"] - 512 == 2 * weights  # and the number of the step
    assert 4 * weights < live.peak < 4.2 * weights


def test_above_the_limit_an_operation_raises_the_error_of_a_full_gpu() -> None:
    with LiveStorages(budget=GIB) as live:
        tensor = torch.empty(2**26)
        with pytest.raises(
            torch.OutOfMemoryError, match=r"Tried to allocate 2.00 GiB\. The CPU memory budget"
        ) as raised:
            torch.empty(2**29)
        assert is_out_of_memory(raised.value)
        assert "1.00 GiB of which 768.00 MiB is free" in str(raised.value)
        assert live.current == tensor.nbytes


def test_a_run_reports_the_counted_memory() -> None:
    resident = used_bytes()
    with counted_memory():
        torch.empty(1024)
        assert (used_bytes(), peak_bytes()) == (0, 4096)
    assert resident > 2**25 and used_bytes() > 2**25


FULL: dict[str, Any] = {"method": "full", "max_steps": 2, "eval_split": 0, "learning_rate": 1e-4}


def test_a_run_under_a_limit_reports_the_peak_of_its_live_storages() -> None:
    run = trained(Recipe(settings=FULL | {"memory_limit": 1024}))
    state = 4 * 4 * run.summary["total_parameters"]  # weights, gradients and two moments
    (peak,) = run.summary["memory"]["peak_bytes"]
    assert state < peak < 2 * state
    assert max(run.series("memory_peak").values()) <= peak


def test_a_run_that_needs_more_than_its_limit_is_out_of_memory(tmp_path: Path) -> None:
    with pytest.raises(torch.OutOfMemoryError, match="CPU memory budget"):
        train_here(tmp_path, *Recipe().inputs, **FULL, memory_limit=1)


@pytest.mark.train
@pytest.mark.parametrize("strategy", ["ddp", "zero3", "fsdp"])
def test_each_rank_counts_its_own_shard(strategy: str) -> None:
    run = trained(Recipe(settings=FULL | {"strategy": strategy, "num_processes": 2, "memory_limit": 1024}))
    assert run.of(Finished)
    weights = 4 * run.summary["total_parameters"]
    # DDP has weights, gradients, two moments and buckets; ZeRO-3 and FSDP halve these and gather one layer at a time.
    least = {"ddp": 5, "zero3": 2.5, "fsdp": 2}[strategy]
    for peak in run.summary["memory"]["peak_bytes"]:
        assert least * weights < peak < (least + 4.5) * weights
