"""The FSDP2 settings of a run, every value resolved. No torch: the page shows them before anything runs."""

from typing import Any

from training.config import Offload, RunConfig, Strategy


def fsdp_config(config: RunConfig) -> dict[str, Any] | None:
    """transformers' `fsdp_config` for `config`, or None where its strategy is not FSDP."""
    if config.strategy is not Strategy.FSDP:
        return None
    return {
        "version": 2,
        # A transformer layer is gathered at a time, and given back between its forward and backward pass.
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "reshard_after_forward": True,
        "cpu_offload": config.offload_param is Offload.CPU,
        # Every rank writes its own part of a checkpoint; the result is gathered once, at the end (training/export.py).
        "state_dict_type": "SHARDED_STATE_DICT",
        "activation_checkpointing": config.recomputes,
        "cpu_ram_efficient_loading": False,
    }
