"""The tokens at which a model stops generating."""

from typing import Any

from training import json_files
from training.model_info.config_json import ModelError, local_folder, read_config, text_config


def end_ids(model: str) -> frozenset[int]:
    """The ids of the end tokens in a local model's config.json and generation_config.json; empty for other models."""
    folder = local_folder(model)
    if folder is None:
        return frozenset()
    try:
        values = read_config(model)
    except ModelError:
        values = {}
    try:
        generation = json_files.read(folder / "generation_config.json")
    except (OSError, ValueError):
        generation = {}
    given = [text_config(values).get("eos_token_id"), values.get("eos_token_id")]
    given.append(generation.get("eos_token_id") if isinstance(generation, dict) else None)
    return frozenset(one for value in given for one in _ids(value))


def _ids(value: Any) -> list[int]:
    listed = value if isinstance(value, list) else [value]
    return [one for one in listed if isinstance(one, int)]
