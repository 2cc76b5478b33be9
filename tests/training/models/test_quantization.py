"""LoRA on 4-bit and 8-bit weights, trained on the CPU."""

from math import prod
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from trained import Recipe, model, trained

from training.config.choices import Precision
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.models.loading import load_tokenizer, load_trainable
from training.rules import check

ANSWERING = {"method": "qlora", "answer_rows": 2, "max_new_tokens": 4}


def elements(folder: Path) -> int:
    with safe_open(folder / "model.safetensors", "numpy") as weights:
        return sum(prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118 - it is no dict


@pytest.mark.train
@pytest.mark.parametrize("quantization", ["4bit", "8bit"])
def test_quantized_runs_learn_count_all_parameters_and_answer(quantization: str) -> None:
    pytest.importorskip("bitsandbytes")
    run = trained(Recipe(settings=ANSWERING | {"quantization": quantization}))
    losses = run.losses()
    assert losses[6] < losses[1]
    assert run.summary["total_parameters"] == elements(model("llama")) + run.summary["trainable_parameters"]
    assert run.summary["answers"]["rows"] == 2
    assert list((run.run_dir / "adapter").glob("*.safetensors"))


@pytest.mark.train
@pytest.mark.parametrize(
    "strategy",
    [pytest.param("ddp", marks=pytest.mark.nightly), pytest.param("zero2", marks=pytest.mark.nightly), "zero3", "fsdp"],
)
def test_two_ranks_learn_the_same_as_one_device(strategy: str) -> None:
    pytest.importorskip("bitsandbytes")
    alone = trained(Recipe(settings=ANSWERING | {"quantization": "4bit"}))
    two_ranks = {"method": "qlora", "strategy": strategy, "num_processes": 2, "micro_batch_size": 2}
    spread = trained(Recipe(settings=two_ranks))
    assert spread.losses() == pytest.approx(alone.losses(), rel=1e-3)
    assert spread.summary["strategy"]["world_size"] == 2
    assert spread.summary["strategy"]["stage"] == {"zero2": 2, "zero3": 3}.get(strategy)
    assert spread.summary["total_parameters"] == alone.summary["total_parameters"]
    shard = spread.shards()[0]
    shared = 2 if strategy in ("zero3", "fsdp") else 1
    assert shard.parameter_shard * shared == pytest.approx(shard.parameters, rel=0.01)


def test_training_quantized_weights_is_refused_with_the_fix() -> None:
    config = RunConfig(model="m", data="d", method="full", quantization="4bit")
    (conflict,) = [item for item in check(config, Machine()) if "quantization" in item.settings]
    assert conflict.blocking and conflict.changes == {"method": "qlora"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize(
    ("weights", "stored", "computed"),
    [("auto", torch.bfloat16, torch.bfloat16), ("fp32", torch.float32, torch.bfloat16)],
)
def test_unquantized_weights_keep_their_dtype_and_products_have_the_precision(
    weights: str, stored: torch.dtype, computed: torch.dtype
) -> None:
    bnb = pytest.importorskip("bitsandbytes")
    settings = {"model": str(model("llama")), "data": "d", "method": "qlora", "weights_precision": weights}
    config = RunConfig.model_validate(settings)
    loaded = load_trainable(config, Precision.BF16, load_tokenizer(config))
    frozen = {
        parameter.dtype
        for name, parameter in loaded.named_parameters()
        if not parameter.requires_grad and type(parameter).__name__ != "Params4bit"
    }
    assert frozen == {stored}
    packed = [module for module in loaded.modules() if isinstance(module, bnb.nn.Linear4bit)]
    assert packed and {module.compute_dtype for module in packed} == {computed}
