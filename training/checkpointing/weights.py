"""The weights that a checkpoint or result saves, without copies of those that it does not; and AdaLoRA's ranks."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, cast

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor

from training.checkpointing.contents import check_missing, shapes_of_files
from training.checkpointing.digest import plain_name, trained_shapes
from training.run_folder.checkpoint_layout import plain_adapter_name

_LEFT_OUT = "left_out.safetensors"
State = dict[str, torch.Tensor]
_RANK_ALLOCATION = "rank_allocation.pt"
_IMPORTANCES = ("ipt", "exp_avg_ipt", "exp_avg_unc")


def copied(model: torch.nn.Module) -> State:
    """The state of a model on this rank: trained weights as copies in host memory, frozen ones as they are.

    ZeRO-1 and ZeRO-2 keep trained weights as parts of flat buffers, which files must not contain whole.
    """
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    return {
        name: tensor.detach().to("cpu", copy=True) if name in trained else tensor
        for name, tensor in model.state_dict().items()
    }


def gathered_trained(model: torch.nn.Module) -> State:
    """The trained weights of a model that FSDP divides, complete in the host memory of rank 0. Every rank calls it."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)
    return cast(State, get_model_state_dict(model, options=options))


@torch.no_grad()
def write_adapter(model: Any, folder: Path | None) -> None:
    """Writes the adapter of an unwrapped model as PEFT does, also if the ranks divide it; a rank without a folder writes nothing.
    A collective."""
    names = saved_names(model)
    trained = {plain_name(name): weight for name, weight in model.named_parameters() if weight.requires_grad}
    state = {names[name]: _whole(weight).to("cpu", copy=True) for name, weight in trained.items() if name in names}
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        model.peft_config["default"].save_pretrained(str(folder))
        save_file(state, folder / "adapter_model.safetensors")


def _whole(weight: torch.Tensor) -> torch.Tensor:
    """A parameter that FSDP or ZeRO-3 divides, complete. A collective."""
    if isinstance(weight, DTensor):
        return weight.full_tensor().detach()
    if hasattr(weight, "ds_id"):
        from deepspeed.runtime.zero import GatheredParameters

        with GatheredParameters([weight]):
            return weight.detach().clone()
    return weight.detach()


def saved_names(model: torch.nn.Module) -> dict[str, str]:
    """The names of the trained parameters in PEFT's or transformers' file, without those that it leaves out or changes.

    PEFT selects an adapter's tensors by the names of modules, and saves what prompts encode instead of their encoders.
    """
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    trained = [plain_name(name) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not isinstance(model, PeftModel):
        return {name: name for name in trained}
    state = {plain_name(name): tensor for name, tensor in model.state_dict(keep_vars=True).items()}
    saved = get_peft_model_state_dict(model, state_dict=dict(state), save_embedding_layers=False)
    names = {id(tensor): name for name, tensor in saved.items()}
    return {name: names[id(state[name])] for name in trained if id(state[name]) in names}


@contextmanager
def own_names(model: torch.nn.Module) -> Iterator[None]:
    """A context in which transformers saves a model's tensors as they are, as a resume loads them.

    Otherwise it saves those of some models, such as mixtures of experts, in the form of their original files.
    """
    conversions = vars(model).get("_weight_conversions")
    model._weight_conversions = []  # type: ignore[assignment]
    try:
        yield
    finally:
        model._weight_conversions = conversions  # type: ignore[assignment]


def write_left_out(model: torch.nn.Module, checkpoint: Path) -> None:
    """Writes the trained parameters that the library's file in a checkpoint leaves out, if there are any, by their own names."""
    saved = saved_names(model)
    trained = {plain_name(name): parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if left_out := {name: weight.detach().cpu() for name, weight in trained.items() if name not in saved}:
        save_file(left_out, checkpoint / _LEFT_OUT)


def check_result(folder: Path, model: torch.nn.Module) -> None:
    """Checks that the safetensors files in `folder` have what the model trained: every parameter, or what its prompts encode.

    transformers may save a model's tensors in the form of the original files, which divides them differently.

    Raises:
        UserError: something is missing.
    """
    names, shapes, saved = saved_names(model), trained_shapes(model), shapes_of_files(folder)
    missing = [name for name, shape in shapes.items() if saved.get(names.get(name, "")) != shape]
    if isinstance(model, PeftModel):
        prompts = model.active_peft_config.is_prompt_learning and "prompt_embeddings" in saved
        changed = {
            name for name in missing if name not in names and plain_adapter_name(name) in saved
        }  # such as AdaLoRA's ranks
        missing = [] if prompts else [name for name in missing if name not in changed]
    elif sum(map(prod, saved.values())) >= sum(map(prod, shapes.values())):
        missing = []
    check_missing(folder.name, missing, len(shapes))


def write_rank_allocation(model: Any, checkpoint: Path) -> None:
    """Writes it into the folder of a checkpoint; nothing for another method. `model` is unwrapped."""
    if (allocator := _allocator(model)) is not None:
        state = {name: getattr(allocator, name) for name in _IMPORTANCES}
        torch.save(state | {"rank_pattern": model.peft_config["default"].rank_pattern}, checkpoint / _RANK_ALLOCATION)


def restore_rank_allocation(model: Any, checkpoint: Path) -> None:
    """Restores it from a checkpoint, if it is there."""
    allocator, file = _allocator(model), checkpoint / _RANK_ALLOCATION
    if allocator is None or not file.is_file():
        return
    state = torch.load(file, map_location=next(iter(model.parameters())).device, weights_only=True)
    model.peft_config["default"].rank_pattern = state.pop("rank_pattern")
    for name, values in state.items():
        setattr(allocator, name, values)


def _allocator(model: Any) -> Any:
    return getattr(getattr(model, "base_model", None), "rankallocator", None)
