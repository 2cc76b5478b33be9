"""The facts of a model folder, read without torch from config.json and the headers of its safetensors files."""

import json
import re
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path

from training.model_info.config_json import HIDDEN, ModelError, positive, read_config, text_config
from training.regular_files import open_regular

_LONGEST_HEADER = 100_000_000  # safetensors refuses a longer one
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "spiece.model",
    "vocab.json",
    "vocab.txt",
)
_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$|^[A-Za-z0-9][\w.-]*$")


@dataclass(frozen=True)
class ModelFacts:
    """A model's facts; `parameters` counts the elements in its safetensors files. None if the model is not a local folder."""

    path: Path | None
    architecture: str
    hidden_size: int | None
    parameters: int | None
    is_local: bool
    is_encoder_decoder: bool | None = None


def describe_model(model: str) -> ModelFacts:
    """Reads the facts of a local folder. Accepts a hub id unchecked, without a network request.

    Raises:
        ModelError: `model` is neither a folder with a model nor a valid hub id.
    """
    try:
        path = Path(model).expanduser()
        is_folder, exists = path.is_dir(), path.exists()
    except (OSError, RuntimeError) as error:  # path too long, or unknown user after ~
        raise ModelError(
            model, f"not a valid path ({error}).", "Give a folder with config.json, or a hub id."
        ) from None
    if is_folder:
        return _describe_folder(model, path)
    if exists:
        raise ModelError(model, "this is a file.", "Give the folder with config.json and the .safetensors weights.")
    if not _HUB_ID.match(model):
        raise ModelError(
            model,
            "no such folder on this machine.",
            "Give a folder with config.json, or a hub id such as Qwen/Qwen3-0.6B.",
        )
    return ModelFacts(None, "", None, None, is_local=False)


def _describe_folder(model: str, path: Path) -> ModelFacts:
    values = read_config(model)
    names = values.get("architectures") or [values.get("model_type")]
    if not names[0]:
        raise ModelError(model, "config.json has no model_type.", "Give the folder of a transformers model.")
    weights = sorted(path.glob("*.safetensors"))
    if not weights:
        pickled = any(path.glob("*.bin")) or any(path.glob("*.pt"))
        fix = (
            "Convert its .bin files to safetensors; Lathe does not load pickled weights, since they can run code."
            if pickled
            else "Copy the weights beside config.json."
        )
        raise ModelError(model, "the folder has no .safetensors weights.", fix)
    try:
        parameters = sum(count_parameters(file) for file in weights)
    except (OSError, ValueError, KeyError, struct.error):
        message = "a .safetensors file is truncated or damaged."
        raise ModelError(model, message, "Copy or download the model again.") from None
    hidden = positive(text_config(values), HIDDEN)
    return ModelFacts(path.resolve(), str(names[0]), hidden, parameters, True, bool(values.get("is_encoder_decoder")))


def has_tokenizer(folder: Path) -> bool:
    """True if the folder has a file from which a tokenizer can be loaded."""
    return any((folder / name).is_file() for name in _TOKENIZER_FILES)


def count_parameters(file: Path) -> int:
    """The number of elements in a safetensors file, from its header (8 bytes of length, then JSON).

    Raises:
        OSError, ValueError, KeyError, struct.error: the file is truncated or damaged.
    """
    with open_regular(file) as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        if length > min(file.stat().st_size, _LONGEST_HEADER):
            raise ValueError("the header is longer than the file, or than 100 MB")
        header = json.loads(stream.read(length))
    tensors = [entry for name, entry in header.items() if name != "__metadata__"]
    end = max((entry["data_offsets"][1] for entry in tensors), default=0)
    if 8 + length + end > file.stat().st_size:
        raise ValueError("the file is truncated")
    return sum(prod(entry["shape"]) for entry in tensors)
