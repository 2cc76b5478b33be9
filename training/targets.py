"""What a method would train, seen without weights: `python -m training.targets --config FILE` prints it as JSON.

The model is built from its config.json alone, on torch's meta device, and the adapter is put on it.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedModel

from training.adapters import add_adapter, check_modules
from training.config import LoraInit, Method, RunConfig
from training.failure import UserError
from training.freezing import train_last_layers
from training.methods import as_names
from training.model import head_options, model_class, parameter_counts, peft_task

_NOT_WITHOUT_WEIGHTS = (Method.FROD, Method.SHIRA)


@dataclass(frozen=True)
class Group:
    """Modules alike: their names with * for the number of a layer, how many there are, and the shape, in -> out, of each."""

    pattern: str
    count: int
    shape: str


@dataclass(frozen=True)
class Targets:
    """`matched` carry the adapter, `whole` train whole, `others` are the linear layers that do neither."""

    trainable: int
    total: int
    matched: list[Group] = field(default_factory=list)
    whole: list[Group] = field(default_factory=list)
    others: list[Group] = field(default_factory=list)


def targets(config: RunConfig) -> Targets:
    """Puts the run's method on its model, without weights.

    Raises:
        UserError: the model has no config.json that can be read, or nothing in it matches.
    """
    if config.method in _NOT_WITHOUT_WEIGHTS:
        fix = "Its target modules are LoRA's: look at them with method lora."
        raise UserError("method", config.method.value, "cannot be put on a model without its weights.", fix)
    model = empty_model(config)
    shapes = {name: _shape(part) for name, part in model.named_modules() if not any(part.children())}
    linear = {name for name, part in model.named_modules() if type(part).__name__ in ("Linear", "Conv1D")}
    if config.method.adapts:
        plain = config.model_copy(update={"lora_init": LoraInit.DEFAULT})  # the matrices have the same sizes
        trained: Any = add_adapter(model, plain, peft_task(config.task))
        matched = set(getattr(trained.base_model, "targeted_module_names", []))
        kept = [name for name, _ in trained.named_modules() if name.endswith(".modules_to_save.default")]
        whole = {name.removeprefix("base_model.model.").removesuffix(".modules_to_save.default") for name in kept}
    else:
        if config.trainable_layers:
            check_modules(model, config.modules_to_save)
            train_last_layers(model, config.trainable_layers, as_names(config.modules_to_save or ""))
        trained, matched = model, set()
        whole = {name for name in shapes if any(one.requires_grad for one in model.get_submodule(name).parameters())}
    groups = [_grouped(names, shapes) for names in (matched, whole, linear - matched - whole)]
    return Targets(*parameter_counts(trained), *groups)


def empty_model(config: RunConfig, dtype: torch.dtype | None = None, classes: Sequence[str] = ()) -> PreTrainedModel:
    """The model of a local folder or a hub id, with its weights' shapes and no weights, of `dtype` or as it is kept.

    Raises:
        UserError: it has no config.json of a model that transformers knows for the task.
    """
    try:
        place = {"revision": config.revision or "main", "trust_remote_code": False}
        known = AutoConfig.from_pretrained(config.model, **place, **head_options(config.task, classes))
        form = {} if dtype is None else {"dtype": dtype}
        with torch.device("meta"):
            made: PreTrainedModel = model_class(config.task).from_config(known, trust_remote_code=False, **form)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        fix = "Give a folder or hub id of a transformers model that fits the task."
        raise UserError("model", config.model, f"cannot be looked at: {reason}", fix) from error
    return made


def _grouped(names: Iterable[str], shapes: dict[str, str]) -> list[Group]:
    """Names that differ in their numbers alone, together, in the model's order."""
    order = {name: place for place, name in enumerate(shapes)}
    counts: dict[tuple[str, str], int] = {}
    for name in sorted(names, key=lambda one: order.get(one, len(order))):
        key = re.sub(r"\.\d+(?=\.|$)", ".*", name), shapes.get(name, "")
        counts[key] = counts.get(key, 0) + 1
    return [Group(pattern, count, shape) for (pattern, shape), count in counts.items()]


def _shape(part: torch.nn.Module) -> str:
    weight = getattr(part, "weight", None)
    if weight is None:
        return ""
    sizes = list(weight.shape) if type(part).__name__ == "Conv1D" else list(reversed(weight.shape))
    return " -> ".join(str(size) for size in sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description="Print which modules a run's method trains, as JSON.")
    parser.add_argument("--config", type=Path, required=True, help="The run's configuration as JSON; - reads it.")
    given = parser.parse_args().config
    text = sys.stdin.read() if str(given) == "-" else given.read_text(encoding="utf-8")
    try:
        found = asdict(targets(RunConfig.model_validate_json(text)))
    except UserError as error:
        message = str(error).removeprefix(f"{error.field} (given: {error.value!r}) ")
        found = {"problem": {"field": error.field, "value": error.value, "message": message, "fix": error.fix}}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
