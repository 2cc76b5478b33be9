"""Finds what a method would train: `python -m training.models.target_modules` reads a configuration and prints `Targets`, as JSON.

It builds the model from its config.json on torch's meta device, without weights, and adds the adapter.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedModel

from training.config.choices import LoraInit, Method
from training.config.run_config import RunConfig
from training.errors import UserError, answer_json
from training.models.loading import apply_method, head_arguments, model_class, parameter_counts

_NOT_WITHOUT_WEIGHTS = (Method.FROD, Method.SHIRA)


@dataclass(frozen=True)
class ModuleGroup:
    """Equal modules: their name with * for the layer number, their count, and the shape of each as "in -> out"."""

    pattern: str
    count: int
    shape: str


@dataclass(frozen=True)
class Targets:
    """`matched` modules carry the adapter, `whole` ones train in full, `others` are the remaining linear layers."""

    trainable: int
    total: int
    matched: list[ModuleGroup] = field(default_factory=list)
    whole: list[ModuleGroup] = field(default_factory=list)
    others: list[ModuleGroup] = field(default_factory=list)


def targets(config: RunConfig) -> Targets:
    """Returns the modules that the run's method trains.

    Raises:
        UserError: the model has no readable config.json, or no module matches.
    """
    if config.method in _NOT_WITHOUT_WEIGHTS:
        fix = "Its target modules are those of method lora."
        raise UserError("method", config.method.value, "needs the weights to build its adapter.", fix)
    model = empty_model(config)
    shapes = {name: _shape(module) for name, module in model.named_modules() if not any(module.children())}
    linear = {name for name, module in model.named_modules() if type(module).__name__ in ("Linear", "Conv1D")}
    if config.method.adapts:
        plain = config.model_copy(update={"lora_init": LoraInit.DEFAULT})  # the matrices have the same sizes
        trained: Any = apply_method(model, plain)
        matched = set(getattr(trained.base_model, "targeted_module_names", []))
        saved = [name for name, _ in trained.named_modules() if name.endswith(".modules_to_save.default")]
        whole = {name.removeprefix("base_model.model.").removesuffix(".modules_to_save.default") for name in saved}
    else:
        trained, matched = apply_method(model, config), set()
        whole = {name for name in shapes if any(p.requires_grad for p in model.get_submodule(name).parameters())}
    groups = [_grouped(names, shapes) for names in (matched, whole, linear - matched - whole)]
    return Targets(*parameter_counts(trained), *groups)


def empty_model(config: RunConfig, dtype: torch.dtype | None = None, classes: Sequence[str] = ()) -> PreTrainedModel:
    """Returns the model on the meta device, without weights, in `dtype` (default: that of its config.json).

    Raises:
        UserError: it has no config.json of a model that transformers knows for the task.
    """
    try:
        source = {"revision": config.revision or "main", "trust_remote_code": False}
        model_config = AutoConfig.from_pretrained(config.model, **source, **head_arguments(config.task, classes))
        options = {} if dtype is None else {"dtype": dtype}
        with torch.device("meta"):
            model: PreTrainedModel = model_class(config.task).from_config(
                model_config, trust_remote_code=False, **options
            )
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        fix = "Set model to a folder or hub id of a transformers model that fits the task."
        raise UserError("model", config.model, f"cannot be read: {reason}", fix) from error
    return model


def _grouped(names: Iterable[str], shapes: dict[str, str]) -> list[ModuleGroup]:
    """Groups names that differ only in their numbers, in the model's order."""
    order = {name: index for index, name in enumerate(shapes)}
    counts: dict[tuple[str, str], int] = {}
    for name in sorted(names, key=lambda name: order.get(name, len(order))):
        key = re.sub(r"\.\d+(?=\.|$)", ".*", name), shapes.get(name, "")
        counts[key] = counts.get(key, 0) + 1
    return [ModuleGroup(pattern, count, shape) for (pattern, shape), count in counts.items()]


def _shape(module: torch.nn.Module) -> str:
    weight = getattr(module, "weight", None)
    if weight is None:
        return ""
    sizes = list(weight.shape) if type(module).__name__ == "Conv1D" else list(reversed(weight.shape))
    return " -> ".join(str(size) for size in sizes)


def main() -> None:
    answer_json(lambda text: asdict(targets(RunConfig.model_validate_json(text))))


if __name__ == "__main__":
    main()
