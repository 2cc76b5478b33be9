"""Decoding by the request alone: of a model's own generation configuration only the token ids apply."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from peft import PeftModel
from transformers import GenerationConfig


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


def _token_ids(generation: GenerationConfig) -> GenerationConfig:
    """What names tokens that a sequence begins, ends or is padded with, also those that a translation model must begin with."""
    return GenerationConfig(
        **{name: value for name, value in generation.to_dict().items() if name.endswith("_token_id")}
    )
