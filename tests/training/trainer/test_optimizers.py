"""Every optimizer and scheduler trains."""

import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny import make_data, make_model
from trainer_process import train_here
from transformers import AutoModelForCausalLM, PreTrainedModel

from training.config.choices import Precision, Scheduler
from training.config.optimizer_name import OptimizerName
from training.config.run_config import RunConfig
from training.models.loading import weights_dtype
from training.reports.live_memory import as_fraction
from training.trainer.optimizers import loraplus, scheduler_arguments, scheduler_name, split_parameters

pytestmark = pytest.mark.train
CLASSES = {
    "adamw": "torch.AdamW",
    "adamw_8bit": "bitsandbytes.AdamW",
    "paged_adamw_8bit": "bitsandbytes.AdamW",
    "paged_adamw_32bit": "bitsandbytes.AdamW",
    "adamw_torchao_8bit": "torchao.AdamW8bit",
    "adamw_torchao_4bit": "torchao.AdamW4bit",
    "adamw_anyprecision": "optimi.AdamW",
    "adafactor": "transformers.Adafactor",
    "lion": "bitsandbytes.Lion",
    "lion_8bit": "bitsandbytes.Lion",
    "muon": "training.MuonWithAdamW",
    "sgd": "torch.SGD",
}
RATES = {"sgd": 0.5, "lion": 1e-3, "lion_8bit": 1e-3}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("inputs")
    return make_model(folder / "model"), make_data(folder / "data.jsonl")


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    """Disables the compilation of torchao's step, which takes half a minute."""
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.mark.parametrize("optimizer", list(OptimizerName))
def test_every_optimizer_learns(tmp_path: Path, inputs: tuple[Path, Path], optimizer: OptimizerName) -> None:
    settings = {"method": "full", "eval_steps": 0, "lr_scheduler": "constant", "warmup": 0}
    rate = RATES.get(optimizer.value, 1e-2)
    precision = "bf16" if optimizer is OptimizerName.ADAMW_ANYPRECISION else "fp32"
    trained = train_here(tmp_path, *inputs, optimizer=optimizer, learning_rate=rate, precision=precision, **settings)
    losses = list(trained.losses().values())
    assert losses[-1] < losses[0] - 0.4
    assert trained.summary["optimizer"] == CLASSES[optimizer]


@pytest.mark.parametrize("optimizer", ["muon", "adamw_torchao_8bit", "adamw_torchao_4bit"])
def test_its_state_resumes_exactly_from_a_checkpoint(tmp_path: Path, inputs: tuple[Path, Path], optimizer: str) -> None:
    settings = {"method": "full", "optimizer": optimizer, "learning_rate": 1e-3, "eval_steps": 0}
    whole = train_here(tmp_path / "whole", *inputs, save_steps=3, **settings)
    for later in ("model", "checkpoints/checkpoint-6"):
        (tmp_path / "whole" / later).rename(tmp_path / later.replace("/", "-"))
    resumed = train_here(tmp_path / "whole", *inputs, save_steps=3, **settings)
    assert resumed.losses() == whole.losses()
    assert (tmp_path / "whole/model/model.safetensors").read_bytes() == (
        tmp_path / "model/model.safetensors"
    ).read_bytes()


def test_muon_takes_the_matrices_of_the_layers_and_adamw_the_rest(inputs: tuple[Path, Path]) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(inputs[0]))
    matrices, others = split_parameters(model)
    names = {id(item): name for name, item in model.named_parameters()}
    assert {names[id(item)].split(".")[-2] for item in matrices} == {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    }  # fmt: skip
    kinds = {names[id(item)].split(".")[-2] for item in others}
    assert kinds == {"embed_tokens", "lm_head", "norm", "input_layernorm", "post_attention_layernorm"}


def test_muon_leaves_matrices_of_one_row_to_adamw() -> None:
    layer = torch.nn.ModuleDict({"gate": torch.nn.Linear(4, 1, bias=False), "up": torch.nn.Linear(4, 2, bias=False)})
    matrices, others = split_parameters(torch.nn.ModuleDict({"layers": torch.nn.ModuleList([layer])}))
    assert [tuple(item.shape) for item in matrices] == [(2, 4)]
    assert [tuple(item.shape) for item in others] == [(1, 4)]


def test_anyprecision_keeps_weights_and_moments_in_bf16(tmp_path: Path, inputs: tuple[Path, Path]) -> None:
    chosen = {"optimizer": "adamw_anyprecision", "method": "full", "precision": "bf16"}
    trained = train_here(tmp_path, *inputs, **chosen, max_steps=2, eval_steps=0, save_steps=2, learning_rate=1e-3)
    state = torch.load(tmp_path / "checkpoints/checkpoint-2/optimizer.pt", weights_only=True)["state"][0]
    assert {state[name].dtype for name in ("exp_avg", "exp_avg_sq", "kahan_comp")} == {torch.bfloat16}
    assert trained.summary["adapter_bytes"] == pytest.approx(2 * trained.summary["total_parameters"], rel=0.1)


def test_plain_adamw_keeps_fp32_weights_under_bf16(inputs: tuple[Path, Path]) -> None:
    config = RunConfig(model=str(inputs[0]), data="d", method="full")
    assert weights_dtype(config, Precision.BF16) == torch.float32
    assert weights_dtype(config, Precision.FP16) == torch.float32


STEPS, PEAK = 10, 0.01


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        ({"lr_scheduler": "wsd", "decay_share": 0.5, "min_lr_ratio": 0.2}, {1: 1.0, 5: 1.0, 10: 0.2764}),
        ({"lr_scheduler": "cosine_with_min_lr", "min_lr_ratio": 0.5}, {1: 1.0, 10: 0.512}),
        ({"lr_scheduler": "cosine_with_restarts", "lr_cycles": 2}, {1: 1.0, 6: 1.0, 10: 0.095}),
        # This low rate lowers the loss by less than 0.001, so the second evaluation halves the rate.
        ({"lr_scheduler": "reduce_on_plateau", "plateau_patience": 0, "learning_rate": 1e-6}, {1: 1e-4, 10: 5e-5}),
    ],
    ids=lambda value: value.get("lr_scheduler"),
)
def test_a_scheduler_s_arguments_are_applied(
    tmp_path: Path, inputs: tuple[Path, Path], settings: dict[str, object], rates: dict[int, float]
) -> None:
    usual = {"max_steps": STEPS, "eval_steps": 4, "warmup": 0, "learning_rate": PEAK}
    trained = train_here(tmp_path, *inputs, **(usual | settings))
    seen = trained.series("learning_rate")
    assert {step: seen[step] / PEAK for step in rates} == pytest.approx(rates, rel=0.01)


@pytest.mark.parametrize("task", ["sft", "grpo", "dpo"])
def test_a_loss_that_stands_still_reduces_the_rate_also_if_it_is_negative(task: str) -> None:
    settings = {"lr_scheduler": "reduce_on_plateau", "plateau_patience": 0, "plateau_factor": 0.5, "min_lr_ratio": 0}
    config = RunConfig.model_validate({"model": "m", "data": "d", "task": task} | settings)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **scheduler_arguments(config))
    for _ in range(3):
        scheduler.step(2.0 if task == "sft" else -2.0)
    assert optimizer.param_groups[0]["lr"] == 0.25


def test_neftune_adds_noise_only_in_training(tmp_path: Path, inputs: tuple[Path, Path]) -> None:
    settings = {"max_steps": 1, "eval_steps": 0, "learning_rate": 1e-9, "warmup": 0}
    plain = train_here(tmp_path / "plain", *inputs, **settings)
    noisy = train_here(tmp_path / "noisy", *inputs, **settings, neftune_noise_alpha=50)
    assert not math.isclose(noisy.losses()[1], plain.losses()[1], rel_tol=1e-4)
    assert noisy.evaluations()[1] == pytest.approx(plain.evaluations()[1], rel=1e-6)


def test_the_optimizer_has_the_configured_betas(tmp_path: Path, inputs: tuple[Path, Path]) -> None:
    asked = {"adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-6, "weight_decay": 0.01}
    train_here(tmp_path, *inputs, **asked, max_steps=1, eval_steps=0, save_steps=1)
    (group, *_) = torch.load(tmp_path / "checkpoints/checkpoint-1/optimizer.pt", weights_only=True)["param_groups"]
    assert (group["betas"], group["eps"], group["weight_decay"], group["fused"]) == ((0.8, 0.95), 1e-6, 0.01, True)


@pytest.mark.parametrize(("limit", "fraction"), [(0.95, 0.95), (4096, 0.5), (65536, 1.0)])
def test_a_memory_limit_is_a_fraction_or_mib(limit: float, fraction: float) -> None:
    assert as_fraction(limit, 8192 * 2**20) == fraction


@pytest.mark.parametrize(
    ("settings", "dtype"),
    [
        ({"method": "lora"}, torch.bfloat16),
        ({"method": "lora", "weights_precision": "fp32"}, torch.float32),
        ({"method": "full"}, torch.float32),
        ({"method": "full", "weights_precision": "bf16"}, torch.bfloat16),
        ({"method": "full", "weights_precision": "fp32", "strategy": "zero2", "num_processes": 2}, torch.bfloat16),
    ],
)
def test_weights_have_the_configured_dtype_without_deepspeed(settings: dict[str, Any], dtype: torch.dtype) -> None:
    config = RunConfig.model_validate({"model": "m", "data": "d"} | settings)
    assert weights_dtype(config, Precision.BF16) == dtype


@pytest.mark.filterwarnings("default::FutureWarning")
def test_lora_plus_trains_lora_on_embeddings_at_the_learning_rate_of_the_run(inputs: tuple[Path, Path]) -> None:
    base: PreTrainedModel = AutoModelForCausalLM.from_pretrained(inputs[0])
    model = get_peft_model(base, LoraConfig(target_modules=["embed_tokens", "q_proj"]))
    settings = {
        "optimizer_cls_and_kwargs": (torch.optim.AdamW, {"lr": 1e-3}),
        "args": SimpleNamespace(weight_decay=0.0),
    }
    optimizer = loraplus(SimpleNamespace(**settings), model, ratio=8)  # type: ignore[arg-type]
    names = {
        id(weight): name.split(".")[-3 if name.endswith("weight") else -2] for name, weight in model.named_parameters()
    }
    rates = {names[id(weight)]: group["lr"] for group in optimizer.param_groups for weight in group["params"]}
    assert rates == {"lora_A": 1e-3, "lora_B": 8e-3, "lora_embedding_A": 1e-3, "lora_embedding_B": 1e-3}


def test_wsd_warms_up_from_its_lowest_rate_as_its_sentence_says() -> None:
    from transformers import get_scheduler

    config = RunConfig(model="m", data="d", lr_scheduler=Scheduler.WSD, learning_rate=0.01, min_lr_ratio=0.2)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=config.learning_rate)
    schedule = get_scheduler(scheduler_name(config), optimizer, 4, 20, scheduler_arguments(config, 20))
    assert schedule.get_last_lr() == [pytest.approx(0.2 * 0.01)]
    assert "(wsd: from its lowest learning rate)" in str(RunConfig.model_fields["warmup"].description)


@pytest.mark.filterwarnings("default::FutureWarning")
def test_lora_plus_multiplies_dora_s_magnitudes_too_as_its_sentence_says(inputs: tuple[Path, Path]) -> None:
    base: PreTrainedModel = AutoModelForCausalLM.from_pretrained(inputs[0])
    model = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"], use_dora=True))
    settings = {"optimizer_cls_and_kwargs": (torch.optim.SGD, {"lr": 0.5}), "args": SimpleNamespace(weight_decay=0.0)}
    optimizer = loraplus(SimpleNamespace(**settings), model, ratio=8)  # type: ignore[arg-type]
    rates = {id(weight): group["lr"] for group in optimizer.param_groups for weight in group["params"]}
    of = {name: rates[id(weight)] for name, weight in model.named_parameters() if weight.requires_grad}
    assert (
        {rate for name, rate in of.items() if "magnitude" in name}
        == {rate for name, rate in of.items() if "lora_B" in name}
        == {4.0}
    )
    assert "(and of DoRA's magnitudes)" in str(RunConfig.model_fields["loraplus_lr_ratio"].description)
