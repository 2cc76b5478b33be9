"""The number of weights that a method trains, from the model's shape. No torch."""

import re

from training.config.choices import Method
from training.config.name_values import as_names
from training.config.peft_methods import is_pattern, options, usual_targets
from training.config.run_config import RunConfig
from training.model_info.shape import Linear, ModelShape


def adapted(config: RunConfig, shape: ModelShape) -> frozenset[str]:
    """The names, within a layer, of the linear modules with an adapter."""
    if not config.method.adapts:
        return frozenset()
    return frozenset(
        linear.name for stack in shape.stacks for linear in stack.linears if _matches(config, shape, linear)
    )


def count(config: RunConfig, shape: ModelShape) -> tuple[int, int]:
    """(trained weights, weights that the method adds to the model).

    Exact for full fine-tuning, LoRA, DoRA and IA3; other methods count as LoRA with their rank, or 8.
    """
    saved = _saved(config, shape)
    if not config.method.adapts:
        if config.trainable_layers:
            last = shape.stacks[-1]
            return min(config.trainable_layers, last.layers) * last.layer_parameters + saved, 0
        return shape.parameters, 0
    names = adapted(config, shape)
    added = sum(
        stack.layers * _adapter(config, linear)
        for stack in shape.stacks
        for linear in stack.linears
        if linear.name in names
    )
    return added + saved, added + saved


def _adapter(config: RunConfig, linear: Linear) -> int:
    if config.method is Method.IA3:
        return (
            linear.inputs
            if linear.name.endswith(("down_proj", "c_proj", "fc2", "wo", "dense_4h_to_h"))
            else linear.outputs
        )
    rank = config.lora_r if config.method.is_lora else int(options(config.method, config.method_options).get("r") or 8)
    return rank * (linear.inputs + linear.outputs) + (
        linear.outputs if config.method.is_lora and config.use_dora else 0
    )


def _saved(config: RunConfig, shape: ModelShape) -> int:
    """The weights of modules_to_save."""
    tables = {"embed_tokens", "wte", "shared", "word_embeddings", "embed_in"}
    heads = {"lm_head", "embed_out"}
    names = set(as_names(config.modules_to_save or ""))
    return shape.table * bool(names & tables) + (shape.head or shape.table) * bool(names & heads)


def _matches(config: RunConfig, shape: ModelShape, linear: Linear) -> bool:
    wanted = config.target_modules
    if wanted == "auto":
        known = usual_targets(config.method, shape.model_type)
        return known is None or any(_ends(linear.name, name) for name in known)
    if wanted == "all-linear":
        return True
    if is_pattern(wanted):
        return any(re.fullmatch(wanted, f"{place}0.{linear.name}") for place in _PLACES)
    return any(_ends(linear.name, name) for name in as_names(wanted))


_PLACES = (
    "model.layers.",
    "transformer.h.",
    "model.decoder.layers.",
    "gpt_neox.layers.",
    "decoder.block.",
    "encoder.block.",
)


def _ends(full: str, name: str) -> bool:
    return full == name or full.endswith(f".{name}")
