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


def test_other_strategies_have_none() -> None:
    config = RunConfig(model="m", data="d")
    assert deepspeed_config(config, 1024, Precision.FP32) is None
