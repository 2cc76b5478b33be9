"""The DeepSpeed configuration is resolved in full."""

import json
from typing import Any

from training.config import Precision, RunConfig
from training.zero import deepspeed_config


def resolved(**values: Any) -> dict[str, Any]:
    config = RunConfig.model_validate({"model": "m", "data": "d", "num_processes": 2, "strategy": "zero2"} | values)
    made = deepspeed_config(config, 1024, Precision.BF16)
    assert made is not None
    return made


def test_nothing_is_left_at_auto() -> None:
    assert '"auto"' not in json.dumps(resolved(strategy="zero3", offload_param="cpu", offload_optimizer="cpu"))


def test_buckets_follow_the_hidden_size() -> None:
    assert resolved()["zero_optimization"]["reduce_bucket_size"] == 1024 * 1024
    assert resolved(strategy="zero3")["zero_optimization"]["stage3_param_persistence_threshold"] == 10 * 1024


def test_batch_sizes_multiply_to_the_global_batch() -> None:
    made = resolved(micro_batch_size=3, gradient_accumulation_steps=5)
    assert made["train_batch_size"] == 3 * 5 * 2


def test_offloads_appear_only_where_asked_for() -> None:
    assert "offload_optimizer" not in resolved()["zero_optimization"]
    both = resolved(strategy="zero3", offload_param="cpu", offload_optimizer="cpu")["zero_optimization"]
    assert both["offload_param"]["device"] == both["offload_optimizer"]["device"] == "cpu"


def test_nvme_comes_with_its_folder_and_how_to_read_and_write_it() -> None:
    made = resolved(strategy="zero3", offload_optimizer="nvme", nvme_path="/disk")
    assert made["zero_optimization"]["offload_optimizer"] == {
        "device": "nvme",
        "pin_memory": True,
        "nvme_path": "/disk",
    }
    assert made["aio"]["block_size"] > 0
    assert "aio" not in resolved(strategy="zero3", offload_optimizer="cpu")


def test_zero_plus_plus_is_named_where_it_is_asked_for() -> None:
    made = resolved(strategy="zero3", zero_quantized_weights=True, zero_hpz_partition_size=2)["zero_optimization"]
    assert made["zero_quantized_weights"] and made["zero_hpz_partition_size"] == 2
    assert not any("quantized" in name for name in resolved(strategy="zero3")["zero_optimization"])


def test_other_strategies_have_none() -> None:
    config = RunConfig(model="m", data="d")
    assert deepspeed_config(config, 1024, Precision.FP32) is None
