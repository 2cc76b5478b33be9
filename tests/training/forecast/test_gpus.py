"""GPUs by the names that people type and drivers report, and the memory that they take for themselves."""

from typing import Any

import pytest

from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.forecast import gpus as cards
from training.forecast.forecast import estimate
from training.model_info.families import shape_of

GIB, MIB = 2**30, 2**20
LLAMA_2_7B: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "vocab_size": 32000, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("driver", "gib", "name"),
    [
        ("NVIDIA GeForce RTX 5090", 31.4, "rtx5090"),
        ("NVIDIA GeForce RTX 5070 Ti", 15.5, "rtx5070ti"),
        ("NVIDIA GeForce RTX 5070", 11.5, "rtx5070"),
        ("NVIDIA GeForce RTX 5060 Ti", 15.5, "rtx5060ti"),
        ("NVIDIA L40S", 44.4, "l40s"),
        ("NVIDIA L4", 22.0, "l4"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 95.0, "rtxpro6000"),
        ("NVIDIA GB10", 119.6, "gb10"),
        ("NVIDIA B300 SXM6 AC", 267.0, "b300"),
        ("AMD Instinct MI300X", 191.9, "mi300x"),
        ("NVIDIA A100-SXM4-80GB", 79.2, "a100-80gb"),
        ("NVIDIA A10G", 22.1, "a10"),
    ],
)
def test_a_driver_s_name_finds_its_model_with_the_reported_memory(driver: str, gib: float, name: str) -> None:
    found = cards.like(driver, int(gib * GIB))
    assert (found.name, found.label, found.memory_bytes) == (name, driver, int(gib * GIB))


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("RTX 5090", "rtx5090"), ("geforce rtx 5070 ti", "rtx5070ti"), ("5080", "rtx5080"), ("rtx pro 6000", "rtxpro6000"),
        ("DGX Spark", "gb10"), ("mi355x", "mi355x"), ("nvidia h100", "h100"), ("M4 Max 64GB", "m4max-64gb"),
    ],
)  # fmt: skip
def test_a_typed_name_finds_its_model(typed: str, name: str) -> None:
    assert cards.find_card(typed).name == name


@pytest.mark.parametrize(("typed", "gib"), [("m2-16gb", 16 * 2 / 3), ("m3 ultra 512 gb", 384)])
def test_apple_silicon_leaves_a_share_of_its_memory_to_the_system(typed: str, gib: float) -> None:
    card = cards.find_card(typed)
    assert card.unified
    assert card.memory_bytes / GIB == pytest.approx(gib, rel=0.01)


def test_an_apple_chip_without_its_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="m4-max-64gb"):
        cards.find_card("m4 max")


def test_several_kinds_of_gpus_are_forecast_by_the_smallest_and_the_note_says_so() -> None:
    names, sizes = ["NVIDIA H100 80GB HBM3", "NVIDIA L4", "NVIDIA H100 80GB HBM3"], [79 * GIB, 22 * GIB, 79 * GIB]
    card = cards.of_machine(Machine("cuda", len(names), names, sizes))
    assert card is not None
    assert (card.name, card.memory_bytes) == ("l4", 22 * GIB)
    assert "2 x NVIDIA H100 80GB HBM3 (79 GiB), 1 x NVIDIA L4 (22 GiB)" in card.note
    alike = cards.of_machine(Machine("cuda", len(names[::2]), names[::2], sizes[::2]))
    assert alike is not None and not alike.note
    assert cards.of_machine(Machine("cuda")) is None


def test_offloading_saves_nothing_on_a_gpu_that_shares_the_host_s_memory() -> None:
    def peak(card: str, **values: Any) -> int:
        asked = RunConfig.model_validate({"model": "m", "data": "d", "method": "full", "strategy": "zero2"} | values)
        return estimate(asked, shape_of(LLAMA_2_7B), card=cards.CARDS[card]).peak_bytes

    assert peak("b200", offload_optimizer="cpu") < 0.7 * peak("b200")
    assert peak("gb10", offload_optimizer="cpu") > 0.8 * peak("gb10")


def test_every_generation_has_a_context() -> None:
    assert {card.generation for card in cards.CARDS.values()} <= cards.CONTEXT.keys()
    assert all(card.context_bytes > 0 for card in cards.CARDS.values())


def test_workspaces_have_the_sizes_of_torch_s_source() -> None:
    known = cards.CARDS
    assert known["a100-80gb"].workspace_bytes == 2 * (2 * 4096 + 8 * 16) * 1024
    assert known["h100"].workspace_bytes == known["rtx5090"].workspace_bytes == 64 * MIB
    assert known["mi300x"].workspace_bytes == 256 * MIB
    assert cards.find_card("m4-16gb").workspace_bytes == 0


def test_nccl_takes_more_over_nvlink_and_nothing_for_one_gpu() -> None:
    h100, l4 = cards.CARDS["h100"], cards.CARDS["l4"]
    assert h100.communication_bytes(1) == 0
    assert l4.communication_bytes(2) == l4.communication_bytes(8) < h100.communication_bytes(2) < GIB
