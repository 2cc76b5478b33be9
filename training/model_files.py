"""What a model folder says about itself, read without torch: config.json and the headers of its safetensors files."""

import json
import re
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$|^[A-Za-z0-9][\w.-]*$")


class ModelError(ValueError):
    """A model that cannot be used; names the field, what was given and the fix."""

    field = "model"

    def __init__(self, value: str, message: str, fix: str) -> None:
        super().__init__(f"model (given: {value!r}): {message} {fix}")
        self.value, self.message, self.fix = value, message, fix


@dataclass(frozen=True)
class ModelFacts:
    """A model's facts; `parameters` counts elements in its safetensors files. None where they are not at hand."""

    path: Path | None
    architecture: str
    hidden_size: int | None
    parameters: int | None
    is_local: bool
    is_encoder_decoder: bool | None = None


def describe_model(model: str) -> ModelFacts:
    """Reads the facts of a local folder; a hub id is taken on trust, without asking the network.

    Raises:
        ModelError: `model` is neither a folder with a model in it nor the form of a hub id.
    """
    try:
        path = Path(model).expanduser()
        is_folder, exists = path.is_dir(), path.exists()
    except (OSError, RuntimeError) as error:  # longer than a path may be, or the home of a user that is not there
        raise ModelError(model, f"is no path: {error}.", "Give a folder with config.json, or a hub id.") from None
    if is_folder:
        return _describe_folder(model, path)
    if exists:
        raise ModelError(model, "is a file.", "Give the folder that holds config.json and the safetensors weights.")
    if not _HUB_ID.match(model):
        raise ModelError(
            model,
            "is no folder on this machine.",
            "Give a folder with config.json, or a hub id such as Qwen/Qwen3-0.6B.",
        )
    return ModelFacts(None, "", None, None, is_local=False)


def _describe_folder(model: str, path: Path) -> ModelFacts:
    values = _read_config(model, path)
    weights = sorted(path.glob("*.safetensors"))
    if not weights:
        pickled = any(path.glob("*.bin")) or any(path.glob("*.pt"))
        fix = (
            "Convert its .bin files to safetensors; pickled weights can run code and are not loaded."
            if pickled
            else "Copy the weights beside config.json."
        )
        raise ModelError(model, "holds no .safetensors weights.", fix)
    nested = values.get("text_config")  # models that see or hear keep their language part here
    text = nested if isinstance(nested, dict) else values
    hidden = next((text[key] for key in ("hidden_size", "n_embd", "d_model") if isinstance(text.get(key), int)), None)
    names = values.get("architectures") or [values.get("model_type", "")]
    try:
        parameters = sum(count_parameters(file) for file in weights)
    except (OSError, ValueError, KeyError, struct.error):
        raise ModelError(
            model, "holds a .safetensors file that is cut off or damaged.", "Copy or download the model again."
        ) from None
    return ModelFacts(path.resolve(), str(names[0]), hidden, parameters, True, bool(values.get("is_encoder_decoder")))


def _read_config(model: str, path: Path) -> dict[str, Any]:
    try:
        values = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(
            model, "is a folder without config.json.", "Give the folder that holds a model's config.json and weights."
        ) from None
    except (OSError, ValueError) as error:
        raise ModelError(
            model, f"has a config.json that cannot be read ({error}).", "Copy or download the model again."
        ) from None
    if not isinstance(values, dict) or not (values.get("model_type") or values.get("architectures")):
        raise ModelError(
            model, "has a config.json that names no model_type.", "Give the folder of a transformers model."
        )
    return values


def count_parameters(file: Path) -> int:
    """Elements in a safetensors file, by its header (8 bytes of length, then JSON).

    Raises:
        OSError, ValueError, KeyError, struct.error: the file is not whole.
    """
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        if length > file.stat().st_size:
            raise ValueError("the header is longer than the file")
        header = json.loads(stream.read(length))
    tensors = [entry for name, entry in header.items() if name != "__metadata__"]
    end = max((entry["data_offsets"][1] for entry in tensors), default=0)
    if 8 + length + end > file.stat().st_size:
        raise ValueError("the file is cut off")
    return sum(prod(entry["shape"]) for entry in tensors)
