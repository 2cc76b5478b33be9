"""The DeepSpeed configuration is completely resolved."""

import json
from typing import Any

from training.config.choices import Precision
from training.config.run_config import RunConfig
from training.config.sharding import MAX_LIVE_PARAMETERS, deepspeed_config, stage_3_sizes


def resolved(**values: Any) -> dict[str, Any]:
    config = RunConfig.model_validate({"model": "m", "data": "d", "num_processes": 2, "strategy": "zero2"} | values)
    created = deepspeed_config(config, 1024, Precision.BF16)
    assert created is not None
    return created


def test_no_key_remains_auto() -> None:
    assert '"auto"' not in json.dumps(resolved(strategy="zero3", offload_param="cpu", offload_optimizer="cpu"))


def test_buckets_follow_the_hidden_size() -> None:
    assert resolved()["zero_optimization"]["reduce_bucket_size"] == 1024 * 1024
    assert resolved(strategy="zero3")["zero_optimization"]["stage3_param_persistence_threshold"] == 10 * 1024


def test_zero_3_has_the_same_sizes_from_settings_and_from_a_file_with_auto() -> None:
    sizes = stage_3_sizes(1024)
    own = {"zero_optimization": {"stage": 3, **dict.fromkeys(sizes, "auto")}}
    for config in (resolved(strategy="zero3"), resolved(strategy="zero3", deepspeed_config=json.dumps(own))):
        assert sizes.items() <= config["zero_optimization"].items()
    assert sizes["stage3_max_live_parameters"] == MAX_LIVE_PARAMETERS


def test_batch_sizes_multiply_to_the_global_batch() -> None:
    created = resolved(micro_batch_size=3, gradient_accumulation_steps=5)
    assert created["train_batch_size"] == 3 * 5 * 2


def test_offloading_is_configured_only_on_request() -> None:
    assert "offload_optimizer" not in resolved()["zero_optimization"]
    both = resolved(strategy="zero3", offload_param="cpu", offload_optimizer="cpu")["zero_optimization"]
    assert both["offload_param"]["device"] == both["offload_optimizer"]["device"] == "cpu"


def test_nvme_has_its_folder_and_aio_settings() -> None:
    created = resolved(strategy="zero3", offload_optimizer="nvme", nvme_path="/disk")
    assert created["zero_optimization"]["offload_optimizer"] == {
        "device": "nvme",
        "pin_memory": True,
        "nvme_path": "/disk",
    }
    assert created["aio"]["block_size"] > 0
    assert "aio" not in resolved(strategy="zero3", offload_optimizer="cpu")


def test_zero_plus_plus_is_configured_on_request() -> None:
    created = resolved(strategy="zero3", zero_quantized_weights=True, zero_hpz_partition_size=2)["zero_optimization"]
    assert created["zero_quantized_weights"] and created["zero_hpz_partition_size"] == 2
    assert not any("quantized" in name for name in resolved(strategy="zero3")["zero_optimization"])


def test_other_strategies_have_no_deepspeed_configuration() -> None:
    config = RunConfig(model="m", data="d")
    assert deepspeed_config(config, 1024, Precision.FP32) is None
