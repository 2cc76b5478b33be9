"""Reads a model's shape from its class: `python -m training.models.layers` reads `model` and `task`, and prints `shape`, as JSON.

It builds the class from config.json on torch's meta device, without weights, so that parameters, layers and linear modules are
those of the class itself, for each class that transformers has.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from training.config.fields import parse
from training.config.task import Task
from training.errors import UserError, answer_json
from training.model_info.shape import Linear, Mixer, ModelShape, Stack, as_document
from training.models.freezing import modules_without_text
from training.models.layer_kinds import experts_of, mixers_of, widths_of
from training.models.loading import peft_task
from training.models.target_modules import empty_model

_HEADS = ("score", "classifier", "classification_head", "sequence_summary", "logits_proj")


def shape_of_model(model: Any) -> ModelShape:
    """Returns the shape of a transformers model, which may be on the meta device. Its parameters add up to the model's."""
    unused = modules_without_text(model)
    text = model.config.get_text_config()
    lists = {name: layers for name, layers in _layer_lists(model) if not f"{name}.".startswith(tuple(_inside(unused)))}
    encoder = _encoder_lists(model, lists)
    stacks = {name: list(_stacks(model, name, layers)) for name, layers in lists.items()}
    encoders = sorted((stack for name in encoder for stack in stacks.pop(name)), key=_size, reverse=True)
    decoders = sorted((stack for kinds in stacks.values() for stack in kinds), key=_size, reverse=True)
    if not decoders:
        decoders, encoders = encoders, []
    table, head = _tables(model)
    first, *rest = decoders or [_EMPTY]
    shape = ModelShape(
        str(model.config.model_type), int(getattr(text, "hidden_size", 0) or 0), _vocabulary(model), first,
        encoders[0] if encoders else None, table, 0, head, 0,
        rms_norm=any("RMSNorm" in type(module).__name__ for module in model.modules()),
        activation=_activation(text), dropout=_dropout(text), attends_with_dropout=_attends_with_dropout(text),
        more=(*rest, *encoders[1:]), outside=tuple(_outside(model, lists, unused)),
        unused=sum(_elements(model.get_submodule(name)) for name in unused), counted_by="class",
    )  # fmt: skip
    return replace(
        shape, final_norms=_elements(model) - shape.parameters, unknown=_unknown(shape), scores=_scores(model)
    )


_EMPTY = Stack(0, (), 1, 1, 1, 1, False, 0, mixers=(Mixer.OTHER,))


def with_adapter(shape: ModelShape, model: Any, task: Task) -> ModelShape:
    """Returns the shape with the size of a LoRA on all linear modules, which PEFT adds to the model; unknown if it refuses."""
    from training.models.adapters import add_adapter

    settings = {"method": "lora", "lora_r": 1, "target_modules": "all-linear", "task": task.value}
    lora = parse({"model": "m", "data": "none"} | settings)
    try:
        adapted = add_adapter(model, lora, peft_task(task))
    except UserError:
        return shape
    trained = {name: weight.numel() for name, weight in adapted.named_parameters() if weight.requires_grad}
    # The head of a task trains in full beside the adapter.
    return replace(shape, all_linear=sum(size for name, size in trained.items() if ".modules_to_save." not in name))


def _scores(model: Any) -> int:
    """Returns the elements of a scoring model's head, which PEFT trains in full beside an adapter."""
    if model.get_output_embeddings() is not None:
        return 0
    return sum(_elements(child) for name, child in model.named_children() if name in ("score", "classifier"))


def _inside(names: list[str]) -> list[str]:
    return [f"{name}." for name in names]


def _size(stack: Stack) -> int:
    return stack.layers * stack.layer_parameters


def _elements(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _layer_lists(module: torch.nn.Module, path: str = "") -> Iterator[tuple[str, list[torch.nn.Module]]]:
    """Yields the outermost lists of modules with linear layers, by path."""
    for name, child in module.named_children():
        place = f"{path}{name}"
        if isinstance(child, torch.nn.ModuleList):
            if len(child) and any(list(_linears(layer)) for layer in child):
                yield place, list(child)
        else:
            yield from _layer_lists(child, f"{place}.")


def _encoder_lists(model: Any, lists: dict[str, list[torch.nn.Module]]) -> list[str]:
    """Names of the lists of layers in the encoder of an encoder-decoder."""
    if not model.config.is_encoder_decoder:
        return []
    encoder = next((module for name, module in model.named_modules() if name.rsplit(".", 1)[-1] == "encoder"), None)
    own = {id(module) for module in encoder.modules()} if encoder is not None else set()
    return [name for name, layers in lists.items() if id(layers[0]) in own]


def _stacks(model: Any, path: str, layers: list[torch.nn.Module]) -> Iterator[Stack]:
    """Yields the kinds of layers in a list: layers with the same modules and parameters are of one kind."""
    kinds: dict[tuple[Any, ...], list[torch.nn.Module]] = {}
    seen: set[int] = set()
    for layer in layers:
        new = [(n, p) for n, p in layer.named_parameters() if id(p) not in seen]
        seen.update(id(parameter) for _, parameter in new)
        kinds.setdefault(tuple((name, tuple(parameter.shape)) for name, parameter in new), []).append(layer)
    for signature, same in kinds.items():
        elements = sum(torch.Size(shape).numel() for _, shape in signature)
        yield _stack(model, f"{path}.", same[0], len(same), elements)


def _stack(model: Any, place: str, layer: torch.nn.Module, count: int, elements: int) -> Stack:
    config = model.config.get_text_config()
    linears = list(_linears(layer))
    if sum(linear.parameters for linear in linears) > elements:
        linears = []  # its weights are those of an earlier layer
    widths = widths_of(layer, config, linears)
    experts = experts_of(layer, config)
    intermediate = experts.intermediate or widths.intermediate
    last = [one for one in linears if one.name == widths.down]
    ordered = (*(one for one in linears if one.name != widths.down), *last)
    names = [name for name, _ in layer.named_modules()]
    return Stack(
        count, ordered, widths.heads, widths.kv_heads, widths.head_dim, max(intermediate, 1), widths.gated,
        elements - sum(linear.parameters for linear in linears),
        cross=any(part in name for name in names for part in ("encoder_attn", "EncDecAttention", "crossattention", "cross_attn")),
        qk_norm=any(name.endswith(("q_norm", "q_layernorm", "query_layernorm")) for name in names),
        experts=experts.count, routed=experts.routed, shared=experts.shared,
        mixers=mixers_of(layer), latent=widths.latent, state=widths.state, place=place,
    )  # fmt: skip


def _linears(layer: torch.nn.Module) -> Iterator[Linear]:
    """Yields the modules that PEFT's LoRA takes for linear: experts stored as one 3-D tensor are none."""
    for name, module in layer.named_modules():
        if isinstance(module, torch.nn.Linear):
            yield Linear(name, module.in_features, module.out_features, module.bias is not None)
        elif type(module).__name__ == "Conv1D":
            inputs, outputs = module.weight.shape
            yield Linear(name, int(inputs), int(outputs), bias=True)


def _outside(model: Any, lists: dict[str, Any], unused: list[str]) -> Iterator[Linear]:
    """Yields the linear modules outside of layers, without the output matrix and a task's head."""
    apart = tuple(_inside([*lists, *unused, *_HEADS]))
    head = model.get_output_embeddings()
    for linear in _linears(model):
        name = linear.name
        if f"{name}.".startswith(apart) or (head is not None and model.get_submodule(name) is head):
            continue
        yield linear


def _tables(model: Any) -> tuple[int, int]:
    """Returns the elements of the token embedding, and of the output matrix if it is another tensor."""
    table = getattr(_embedding(model), "weight", None)
    head = getattr(model.get_output_embeddings(), "weight", None)
    own = head.numel() if head is not None and head is not table else 0
    return table.numel() if table is not None else 0, own


def _embedding(model: Any) -> Any:
    try:
        return model.get_input_embeddings()
    except NotImplementedError:
        return None


def _vocabulary(model: Any) -> int:
    weight = getattr(_embedding(model), "weight", None)
    size = getattr(model.config.get_text_config(), "vocab_size", 0) if weight is None else weight.shape[0]
    return int(size or 0)


def _activation(config: Any) -> str:
    names = (
        "hidden_act",
        "hidden_activation",
        "activation",
        "activation_function",
        "feed_forward_proj",
        "mlp_hidden_act",
    )
    activations = (str(value) for name in names if isinstance(value := getattr(config, name, None), str))
    return next(activations, "silu").removeprefix("gated-")


def _dropout(config: Any) -> float:
    names = (
        "attention_dropout",
        "hidden_dropout",
        "dropout",
        "resid_pdrop",
        "attn_pdrop",
        "dropout_rate",
        "hidden_dropout_prob",
    )
    rates = (getattr(config, name, None) for name in names)
    return max((float(rate) for rate in rates if isinstance(rate, int | float)), default=0.0)


def _attends_with_dropout(config: Any) -> bool:
    """False if the config has a rate of its own for attention, and it is 0."""
    names = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob")
    rates = [rate for name in names if isinstance(rate := getattr(config, name, None), int | float)]
    return any(rates) if rates else True


def _unknown(shape: ModelShape) -> str:
    """Names what the formulas do not know of the layers."""
    if Mixer.OTHER in shape.mixers:
        return "its layers mix tokens in a way that the formulas do not know"
    kinds = sorted(mixer.value for mixer in shape.mixers & {Mixer.LINEAR, Mixer.STATE_SPACE})
    return f"what layers with {' and '.join(kinds)} save depends on the installed kernels" if kinds else ""


def main() -> None:
    def answer(text: str) -> dict[str, Any]:
        config = parse({"data": "none"} | json.loads(text))
        model = empty_model(config)
        return {"shape": as_document(with_adapter(shape_of_model(model), model, config.task))}

    answer_json(answer)


if __name__ == "__main__":
    main()
