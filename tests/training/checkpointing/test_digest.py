"""What is saved is exactly what is trained: every parameter, finite, the same after a resume."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from tiny import make_model
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from trained import copy_of, resumable
from transformers import AutoModelForCausalLM, MixtralConfig, MixtralForCausalLM, PreTrainedModel

from training.checkpointing import digest as digest_module
from training.checkpointing.contents import check_contents, shapes_of_files
from training.checkpointing.digest import Digest, Part, trained_shapes
from training.checkpointing.resharding import read_weights
from training.checkpointing.weights import check_result, own_names, saved_names, write_left_out
from training.config.choices import Strategy
from training.config.peft_methods import REQUIRED, methods
from training.config.run_config import RunConfig
from training.errors import UserError
from training.models.adapters import add_adapter
from training.models.loading import load_model
from training.run_folder import checkpoints
from training.run_folder.checkpoint_layout import CheckpointLayout

pytestmark = [
    pytest.mark.slow,  # imports torch
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]
SMALL: dict[str, dict[str, Any]] = {
    "c3a": {"block_size": 32},
    "vblora": {"vector_length": 32},
    "trainable_tokens": {"token_indices": [70, 71, 72]},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def lora(folder: Path) -> PeftModel:
    base: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder)
    return get_peft_model(base, LoraConfig(target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))


def stepped(model: torch.nn.Module) -> torch.optim.Optimizer:
    """An optimizer with state."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    for parameter in trained:
        parameter.grad = torch.rand_like(parameter)
    optimizer.step()
    return optimizer


def of(model: torch.nn.Module, optimizer: Any) -> Digest:
    return Digest.of(model, optimizer, divided=False)


def test_hashes_of_parts_add_up_to_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest_module, "_CHUNK", 7)
    for dtype in (torch.float32, torch.bfloat16, torch.uint8):
        values = (torch.rand(100) * 100).to(dtype)
        whole = digest_module._hash(Part("weight", "weight", 0, values))
        parts = [Part("weight", "weight", first, values[first : first + 34]) for first in (0, 34, 68)]
        assert sum(digest_module._hash(part) for part in parts) == whole
        assert digest_module._hash(Part("weight", "weight", 0, values.flip(0))) != whole
        assert digest_module._hash(Part("bias", "weight", 0, values)) != whole


def test_a_digest_tells_every_change_of_weights_and_optimizer_state(lora: PeftModel) -> None:
    optimizer = stepped(lora)
    before = of(lora, optimizer)
    assert len(before.rows) == sum(parameter.requires_grad for parameter in lora.parameters())
    assert not before.incomplete(trained_shapes(lora)) and not before.not_finite
    assert not of(lora, optimizer).differences(before, converted=False, weights_only=False)
    (first, *_) = optimizer.state.values()
    first["exp_avg"][0, 0] += 1
    (name,) = of(lora, optimizer).differences(before, converted=False, weights_only=False)
    assert "lora_A" in name
    assert not of(lora, optimizer).differences(before, converted=False, weights_only=True)
    next(iter(optimizer.param_groups[0]["params"])).data[0, 0] = float("nan")
    assert of(lora, optimizer).not_finite == [name]


@pytest.mark.parametrize("fused", [True, False])
def test_the_fp32_copies_of_zero_0_have_the_digest_of_their_parameters(lora: PeftModel, fused: bool) -> None:
    trained = [parameter for parameter in lora.parameters() if parameter.requires_grad]
    copies = [parameter.detach().clone() for parameter in trained]
    held = [torch.cat([copy.flatten() for copy in copies])] if fused else copies
    for copy in held:
        copy.grad = torch.ones_like(copy)
    optimizer = torch.optim.AdamW(held)
    optimizer.step()
    groups: dict[str, Any] = {"fp32_groups_flat": held} if fused else {"fp32_groups": [held]}
    zero = SimpleNamespace(fp16_groups=[trained], optimizer=optimizer, **groups)
    found = Digest.of(lora, SimpleNamespace(optimizer=zero), divided=False)
    for parameter in trained:
        parameter.grad = torch.ones_like(parameter)
    plain = torch.optim.AdamW(trained)
    plain.step()
    assert found == Digest.of(lora, plain, divided=False)


def test_a_parameter_that_no_optimizer_has_is_incomplete(lora: PeftModel) -> None:
    optimizer = stepped(lora)
    optimizer.param_groups[0]["params"].pop()
    (name,) = of(lora, optimizer).incomplete(trained_shapes(lora))
    assert "lora_B" in name


@pytest.mark.parametrize("method", sorted(methods()))
def test_a_checkpoint_of_every_method_has_every_trained_parameter(tmp_path: Path, folder: Path, method: str) -> None:
    options = REQUIRED[method] | SMALL.get(method, {})
    config = RunConfig.model_validate(
        {"model": str(folder), "data": "d", "method": method, "method_options": options or None}
    )
    model = add_adapter(load_model(config, torch.float32), config)
    model.save_pretrained(tmp_path)
    write_left_out(model, tmp_path)
    shapes, names = trained_shapes(model), saved_names(model)
    layout = CheckpointLayout(
        Strategy.SINGLE, 1, 4, list(shapes), list(shapes.values()), [names.get(name, name) for name in shapes]
    )
    check_contents(tmp_path, layout, shapes)
    check_result(tmp_path, model)
    saved = read_weights(tmp_path, layout)
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    assert saved.keys() == weights.keys()
    assert all(torch.equal(saved[name], weights[name]) for name in weights)


def test_a_checkpoint_of_a_mixture_of_experts_has_the_parameters_that_a_resume_loads(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = MixtralForCausalLM(MixtralConfig(vocab_size=32, num_hidden_layers=1, num_local_experts=2, **sizes))
    model.save_pretrained(tmp_path / "result")
    shapes = trained_shapes(model)
    assert not shapes.keys() <= shapes_of_files(tmp_path / "result").keys()  # in the form of Mixtral's own files
    check_result(tmp_path / "result", model)
    with own_names(model):
        model.save_pretrained(tmp_path / "checkpoint")
    layout = CheckpointLayout(Strategy.SINGLE, 1, 4, list(shapes), list(shapes.values()), list(shapes))
    check_contents(tmp_path / "checkpoint", layout, shapes)
    for folder in ("result", "checkpoint"):
        again = MixtralForCausalLM.from_pretrained(tmp_path / folder)
        assert all(torch.equal(weight, again.get_parameter(name)) for name, weight in model.named_parameters())


def test_what_wrappers_hide_from_peft_is_refused(tmp_path: Path, lora: PeftModel) -> None:
    layers = lora.get_base_model().model.layers
    for number, layer in enumerate(layers):
        layers[number] = checkpoint_wrapper(layer)  # as accelerate does for FSDP
    lora.save_pretrained(tmp_path)
    assert not load_file(tmp_path / "adapter_model.safetensors")
    with pytest.raises(UserError, match=r"lacks 8 of 8 trained parameters, such as base_model.model.model.layers.0"):
        check_result(tmp_path, lora)


def test_a_resume_refuses_weights_that_are_not_those_saved(tmp_path: Path) -> None:
    recipe = resumable("single", "lora")
    run_dir = copy_of(recipe, tmp_path / "run", "events.jsonl", "adapter")
    checkpoint = checkpoints.sealed(run_dir)[0]
    file = checkpoint / "adapter_model.safetensors"
    weights = load_file(file)
    weights[sorted(weights)[0]][0, 0] += 1
    save_file(weights, file, metadata={"format": "pt"})
    checkpoints.seal(checkpoint)
    with pytest.raises(UserError, match=r"checkpoint-4.*was loaded with other weights or optimizer state.*in 1 of 8"):
        recipe.train(run_dir)
    assert checkpoints.fault(checkpoint) == ""
