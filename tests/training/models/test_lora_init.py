"""With every LoRA initialization the adapter fits the original model and resumes exactly; modules_to_save and last layers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from peft.utils.integrations import dequantize_module_weight
from tiny import make_model
from trained import Recipe, copy_of, trained

from training.config.choices import Precision
from training.config.run_config import RunConfig
from training.errors import UserError
from training.models.loading import load_model, load_tokenizer, load_trainable, parameter_counts
from training.models.lora_init import export_plain_lora, initial_dir
from training.run_folder.events import Note, Resumed

ignored = (
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore::UserWarning",
    "ignore:.*rank_pattern:RuntimeWarning",
)
pytestmark = pytest.mark.filterwarnings(*ignored)
TOKENS = torch.arange(60, 84).reshape(2, 12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def config(model: Path, **values: Any) -> RunConfig:
    return RunConfig.model_validate({"model": str(model), "data": "d", "lora_r": 4} | values)


def loaded(chosen: RunConfig, run: Path | None = None) -> Any:
    initial = initial_dir(run) if run else None
    return load_trainable(chosen, Precision.FP32, load_tokenizer(chosen), initial=initial).train()


def step(model: Any, count: int = 2) -> None:
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad], lr=1e-2)
    for _ in range(count):
        model(input_ids=TOKENS, labels=TOKENS).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model.eval()(input_ids=TOKENS).logits
    return result


INITS: list[dict[str, Any]] = [
    {"lora_init": "pissa", "modules_to_save": "lm_head"},
    {
        "lora_init": "pissa_niter_4",
        "use_rslora": True,
        "method_options": "rank_pattern={q_proj: 2}, alpha_pattern={v_proj: 3}",
    },
    {"lora_init": "olora", "use_dora": True},
]


@pytest.mark.parametrize("settings", INITS, ids=lambda one: one["lora_init"])
def test_a_pissa_or_olora_adapter_fits_the_original_model(
    tmp_path: Path, folder: Path, settings: dict[str, Any]
) -> None:
    chosen = config(folder, **settings)
    before = load_model(chosen, torch.float32)
    model = loaded(chosen, tmp_path)
    assert torch.allclose(
        logits(model), logits(before), atol=1e-5
    )  # the adapter contains what was subtracted from the weights
    base = model.get_base_model().model.layers[0].self_attn.q_proj.base_layer.weight
    assert not torch.allclose(base, before.model.layers[0].self_attn.q_proj.weight, atol=1e-4)
    step(model.train())
    model.save_pretrained(tmp_path / "adapter")
    export_plain_lora(tmp_path / "adapter", tmp_path)
    assert (
        type(json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["lora_alpha"]) is int
    )  # as the setting
    adapted = PeftModel.from_pretrained(load_model(chosen, torch.float32), str(tmp_path / "adapter"))
    assert torch.allclose(logits(adapted), logits(model), atol=1e-5)
    assert not torch.allclose(logits(adapted), logits(before), atol=1e-3)


def test_a_resumed_run_subtracts_the_same_initial_matrices(tmp_path: Path, folder: Path) -> None:
    torch.manual_seed(1)
    first = loaded(config(folder, lora_init="pissa_niter_4"), tmp_path)
    torch.manual_seed(2)
    again = loaded(config(folder, lora_init="pissa_niter_4"), tmp_path)
    for (name, parameter), (_, other) in zip(first.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(parameter, other), name


def test_loftq_starts_closer_to_the_unquantized_weights_than_4bit_alone(folder: Path) -> None:
    pytest.importorskip("bitsandbytes")
    chosen = config(folder, method="qlora", lora_init="loftq", lora_r=16, target_modules="all-linear")
    whole = load_model(config(folder), torch.float32)
    layers = 0
    for name, layer in loaded(chosen).get_base_model().named_modules():
        if isinstance(layer, LoraLayer):
            weight, held = whole.get_submodule(name).weight, dequantize_module_weight(layer.get_base_layer()).float()
            fitted = held + layer.get_delta_weight("default").float()
            assert (weight - fitted).norm() < 0.8 * (weight - held).norm()
            layers += 1
    assert layers == 14


def test_only_the_last_layers_and_the_named_modules_train(folder: Path) -> None:
    chosen = config(folder, method="full", trainable_layers=1, modules_to_save="lm_head")
    model = loaded(chosen)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {name for name, _ in model.named_parameters() if name.startswith(("model.layers.1.", "lm_head"))}
    frozen = model.model.layers[0].mlp.up_proj.weight.clone()
    step(model)
    assert torch.equal(frozen, model.model.layers[0].mlp.up_proj.weight)


def test_modules_to_save_are_trained_in_full(folder: Path) -> None:
    plain, more = loaded(config(folder)), loaded(config(folder, modules_to_save="lm_head"))
    assert parameter_counts(more)[0] - parameter_counts(plain)[0] == plain.get_output_embeddings().weight.numel()


@pytest.mark.parametrize(
    ("settings", "field", "words"),
    [
        ({"method": "full", "trainable_layers": 3}, "trainable_layers", "the model's 2 layers"),
        ({"method": "full", "trainable_layers": 1, "modules_to_save": "head"}, "modules_to_save", "no such module"),
        ({"modules_to_save": "head"}, "modules_to_save", "no such module"),
        ({"method": "qlora", "modules_to_save": "o_proj"}, "modules_to_save", "are quantized"),
        ({"method": "vblora"}, "method_options", "vector_length"),
        ({"target_modules": ".*query"}, "target_modules", "do not fit"),
    ],
)
def test_unknown_modules_and_too_many_layers_are_clear_errors(
    folder: Path, settings: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(UserError) as caught:
        loaded(config(folder, **settings))
    assert caught.value.problem.field == field
    assert words in str(caught.value)


@pytest.mark.train
def test_a_pissa_run_with_lora_plus_resumes_exactly_and_its_adapter_evaluates_as_it_ended(
    tmp_path: Path, folder: Path
) -> None:
    settings = {"lora_init": "pissa_niter_4", "loraplus_lr_ratio": 8, "learning_rate": 1e-3, "save_steps": 3}
    recipe = Recipe(settings=settings | {"strategy": "ddp", "num_processes": 2, "micro_batch_size": 2, "eval_steps": 0})
    whole, later = trained(recipe), ("adapter", "checkpoint-6", "events.jsonl")
    resumed = recipe.train(copy_of(recipe, tmp_path / "resumed", *later))
    assert [event.step for event in resumed.of(Resumed)] == [3]
    assert resumed.losses() == pytest.approx({step: whole.losses()[step] for step in (4, 5, 6)}, rel=1e-5)
    plain, restored = [
        logits(PeftModel.from_pretrained(load_model(config(folder), torch.float32), str(run.run_dir / "adapter")))
        for run in (whole, resumed)
    ]
    assert torch.allclose(plain, restored, atol=1e-4)


@pytest.mark.train
def test_adalora_reallocates_its_ranks_within_the_run(folder: Path) -> None:
    options = "target_r=2, init_r=4, tinit=1, tfinal=2"
    settings = {"method": "adalora", "method_options": options, "eval_steps": 0, "lora_r": 64}
    run = trained(Recipe(settings=settings))
    assert run.losses()[6] < run.losses()[1]
    assert any("lora_r has no effect with method adalora" in note.message for note in run.of(Note))
    created = PeftModel.from_pretrained(load_model(config(folder), torch.float32), str(run.run_dir / "adapter"))
    ranks = created.peft_config["default"].rank_pattern.values()
    assert sum(sum(rank) for rank in ranks) == 2 * len(ranks)
