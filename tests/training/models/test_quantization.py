"""LoRA on 4-bit and 8-bit weights, trained on the CPU."""

from math import prod
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tiny import make_data, make_model
from trainer_process import Trained, start

from training.config.choices import Precision
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.models.loading import load_tokenizer, load_trainable
from training.rules import check


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("inputs")
    return make_model(folder / "model"), make_data(folder / "data.jsonl")


def elements(model: Path) -> int:
    with safe_open(model / "model.safetensors", "numpy") as weights:
        return sum(prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118 - it is no dict


@pytest.mark.train
@pytest.mark.parametrize("quantization", ["4bit", "8bit"])
def test_quantized_runs_learn_count_all_parameters_and_answer(
    tmp_path: Path, inputs: tuple[Path, Path], quantization: str
) -> None:
    pytest.importorskip("bitsandbytes")
    settings = {"method": "qlora", "quantization": quantization, "answer_rows": 2, "max_new_tokens": 4}
    trained = start(tmp_path / "run", *inputs, **settings)
    assert trained.finish() == 0, trained.log()
    losses = trained.losses()
    assert losses[6] < losses[1]
    assert trained.summary["total_parameters"] == elements(inputs[0]) + trained.summary["trainable_parameters"]
    assert trained.summary["answers"]["rows"] == 2
    assert list((tmp_path / "run" / "adapter").glob("*.safetensors"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, inputs: tuple[Path, Path]) -> Trained:
    pytest.importorskip("bitsandbytes")
    trained = start(tmp_path_factory.mktemp("alone"), *inputs, method="qlora")
    assert trained.finish() == 0, trained.log()
    return trained


@pytest.mark.train
@pytest.mark.parametrize("strategy", ["ddp", "zero2", "zero3", "fsdp"])
def test_two_ranks_learn_the_same_as_one_device(
    tmp_path: Path, inputs: tuple[Path, Path], alone: Trained, strategy: str
) -> None:
    spread = start(tmp_path, *inputs, method="qlora", strategy=strategy, num_processes=2, micro_batch_size=2)
    assert spread.finish() == 0, spread.log()
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
    inputs: tuple[Path, Path], weights: str, stored: torch.dtype, computed: torch.dtype
) -> None:
    bnb = pytest.importorskip("bitsandbytes")
    settings = {"model": str(inputs[0]), "data": "d", "method": "qlora", "weights_precision": weights}
    config = RunConfig.model_validate(settings)
    model = load_trainable(config, Precision.BF16, load_tokenizer(config))
    frozen = {
        parameter.dtype
        for name, parameter in model.named_parameters()
        if not parameter.requires_grad and type(parameter).__name__ != "Params4bit"
    }
    assert frozen == {stored}
    packed = [module for module in model.modules() if isinstance(module, bnb.nn.Linear4bit)]
    assert packed and {module.compute_dtype for module in packed} == {computed}
