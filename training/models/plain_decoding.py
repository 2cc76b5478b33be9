"""Decoding by the request alone, where of a model's own generation configuration only the token ids apply; or by all of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft import PeftModel
from transformers import GenerationConfig

from training.scoring.request import Decoding

_SEED = 0


@contextmanager
def plain_decoding(model: Any) -> Iterator[None]:
    """A context in which `model.generate()` takes nothing from generation_config.json but token ids.

    transformers fills each value that a call leaves open from this file: a repetition penalty or forbidden n-grams there change
    greedy answers, too. Greedy answers are to be the most probable tokens, wherever they are compared.
    """
    holders = [model, model.get_base_model()] if isinstance(model, PeftModel) else [model]
    own = [(holder, holder.generation_config) for holder in holders]
    try:
        for holder, generation in own:
            holder.generation_config = _token_ids(generation)
        yield
    finally:
        for holder, generation in own:
            holder.generation_config = generation


@contextmanager
def decoding(model: Any, kind: Decoding) -> Iterator[dict[str, Any]]:
    """A context in which `model.generate()` decodes so with the arguments that it yields. Where the model's own configuration says
    that it samples, the same seed is used in each context."""
    if kind is Decoding.GREEDY:
        with plain_decoding(model):
            yield {"do_sample": False}
        return
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(_SEED)
        yield {}


def own_values(model: Any) -> dict[str, Any]:
    """What the model's own generation configuration says besides token ids and what is off, such as a repetition penalty."""
    values = model.generation_config.to_diff_dict()
    others = ("transformers_version", "use_cache")
    return {
        name: value
        for name, value in values.items()
        if value not in (None, False) and name not in others and name[0] != "_" and not name.endswith("_token_id")
    }


def _token_ids(generation: GenerationConfig) -> GenerationConfig:
    """What names tokens that a sequence begins, ends or is padded with, also those that a translation model must begin with."""
    return GenerationConfig(
        **{name: value for name, value in generation.to_dict().items() if name.endswith("_token_id")}
    )
