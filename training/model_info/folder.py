"""The facts of a model folder, read without torch from config.json and the headers of its safetensors files."""

import json
import re
import struct
from dataclasses import dataclass
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any

from training import json_files
from training.errors import UserError
from training.files import open_regular, read_regular
from training.model_info.config_json import (
    CONFIG_FILE,
    HIDDEN,
    ModelError,
    local_path,
    positive,
    read_config,
    text_config,
)
from training.nearest import nearest

ADAPTER_CONFIG = "adapter_config.json"
_FOLDER_FIX = "Give the folder with config.json and the .safetensors weights."
_MOST_NAMES, _NEARLY, _MOST_BYTES = 1000, 0.75, 2**20
_LONGEST_HEADER = 16 * 2**20
"""Bytes of a header: a tensor takes about 100 bytes, and a file has some thousands."""
_MOST_VALUES = 700_000
"""Values of a header: a tensor has seven, with its brackets."""
_MOST_NAMED = 200_000
"""Tensors in an index: the largest models have 100,000. Of a longer one nothing is compared."""
_MOST_DIMENSIONS = 64
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "spiece.model",
    "vocab.json",
    "vocab.txt",
)
_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]{0,95}(/[\w.-]{1,96})?$")


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
    """Reads the facts of a local folder. Accepts a hub id unchecked, without a network request. Raises ModelError if `model` is
    neither a folder with a model nor a valid hub id."""
    try:
        path = local_path(model)
        is_folder, exists = path is not None and path.is_dir(), path is not None and path.exists()
    except (OSError, ValueError) as error:  # path too long, or with a NUL
        raise ModelError(
            model, f"not a valid path ({error}).", "Give a folder with config.json, or a hub id."
        ) from None
    if path is not None and is_folder:
        return _describe_folder(model, path)
    if path is not None and exists:
        raise _gguf(model) if path.suffix == ".gguf" else ModelError(model, "this is a file.", _FOLDER_FIX)
    if not _HUB_ID.match(model):
        raise ModelError(
            model,
            "no such folder on this machine.",
            "Give a folder with config.json, or a hub id such as Qwen/Qwen3-0.6B.",
        )
    return ModelFacts(None, "", None, None, is_local=False)


def misspelled(model: str) -> Path | None:
    """The model folder of this machine whose name is nearly `model`, which is no folder; None if there is none."""
    path = Path(model)
    try:
        names = [entry.name for entry in islice(path.parent.iterdir(), _MOST_NAMES) if (entry / CONFIG_FILE).is_file()]
    except OSError:
        return None
    close = nearest(path.name, names, cutoff=_NEARLY)
    return path.parent / close[0] if close else None


def adapter_base(folder: Path) -> str | None:
    """The base model of a folder with an adapter, "" if it names none; None for any other folder."""
    try:
        values = json.loads(read_regular(folder / ADAPTER_CONFIG, _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return str(values.get("base_model_name_or_path") or "") if isinstance(values, dict) else None


def _describe_folder(model: str, path: Path) -> ModelFacts:
    if not (path / CONFIG_FILE).is_file():
        _refuse_other_kinds(model, path)
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
    _refuse_missing_shards(model, path)
    try:
        parameters = sum(count_parameters(file) for file in weights)
    except (OSError, ValueError, KeyError, struct.error):
        message = "a .safetensors file is truncated or damaged."
        raise ModelError(model, message, "Copy or download the model again.") from None
    hidden = positive(text_config(values), HIDDEN)
    return ModelFacts(path.resolve(), str(names[0]), hidden, parameters, True, bool(values.get("is_encoder_decoder")))


def _refuse_other_kinds(model: str, path: Path) -> None:
    """Refuses a folder without config.json that has an adapter or a GGUF file. Raises ModelError if it has one."""
    if (base := adapter_base(path)) is not None:
        fix = f"Set model to {base or 'its base model'}, and init_adapter to this folder to continue from the adapter."
        raise ModelError(model, "this is the folder of an adapter, not of a model.", fix)
    if any(path.glob("*.gguf")):
        raise _gguf(model)


def _gguf(model: str) -> ModelError:
    fix = "Give the model from which it was converted: the folder with config.json and the .safetensors weights."
    return ModelError(model, "this is GGUF, the format of llama.cpp, which cannot be trained.", fix)


def _refuse_missing_shards(model: str, path: Path) -> None:
    """Refuses a folder without one of the files that the index of its weights names. Raises ModelError if one is missing."""
    try:
        index = json_files.of_file(read_regular(path / "model.safetensors.index.json", _LONGEST_HEADER), _MOST_NAMED)
        names = {str(name) for name in index["weight_map"].values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return  # there is no index, or transformers names what is wrong with it
    missing = sorted(names - {file.name for file in path.iterdir() if file.is_file()})
    if missing:
        message = f"the folder lacks {missing[0]}" + (f" and {len(missing) - 1} more files" if missing[1:] else "")
        fix = "Copy or download it again, with all files that model.safetensors.index.json names."
        raise ModelError(model, f"{message} of its weights.", fix)


def module_names(folder: Path) -> set[str]:
    """The names of the modules that have a weight in a model's safetensors files. Raises OSError, ValueError, KeyError or
    struct.error as `count_parameters`."""
    names = (name for file in folder.glob("*.safetensors") for name in _header(file))
    return {name.rpartition(".")[0] for name in names if name.endswith(".weight")}


def has_tokenizer(folder: Path) -> bool:
    """True if the folder has a file from which a tokenizer can be loaded."""
    return any((folder / name).is_file() for name in _TOKENIZER_FILES)


def tensor_shapes(folder: Path) -> dict[str, list[int]]:
    """The shapes of the tensors in the safetensors files of a folder, by name. Raises OSError, ValueError, KeyError or
    struct.error as `count_parameters`."""
    return {name: entry["shape"] for file in folder.glob("*.safetensors") for name, entry in _header(file).items()}


def count_parameters(file: Path) -> int:
    """The number of elements in a safetensors file, from its header (8 bytes of length, then JSON). Raises OSError, ValueError,
    KeyError or struct.error if the file is truncated or damaged."""
    return sum(prod(entry["shape"]) for entry in _header(file).values())


def check_weights(folder: Path, field: str, value: str, fix: str = "Restore it, or use a checkpoint.") -> None:
    """Raises UserError for `value` of `field` if a safetensors file in a folder is truncated or damaged: each library has an error
    of its own for it, which names no file."""
    for file in sorted(folder.glob("*.safetensors")):
        try:
            _header(file)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error):
            raise UserError(field, value, f"cannot be loaded: {file.name} is truncated or damaged.", fix) from None


def _header(file: Path) -> dict[str, Any]:
    """The entries of the tensors in a safetensors file, by name; each has a shape whose elements its bytes can hold. Raises
    ValueError or struct.error if the file is truncated or damaged."""
    with open_regular(file) as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        if length > min(file.stat().st_size, _LONGEST_HEADER):
            raise ValueError("the header is longer than the file, or than 16 MB")
        text = stream.read(length)
    header = json_files.of_file(text, _MOST_VALUES)
    if not isinstance(header, dict):
        raise ValueError("the header is no JSON object")
    tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
    end = max(map(_end, tensors.values()), default=0)
    if 8 + length + end > file.stat().st_size:
        raise ValueError("the file is truncated")
    return tensors


def _end(entry: Any) -> int:
    """Where the data of a tensor ends. Raises ValueError for an entry that no tensor has: its numbers cost more than its text."""
    match entry:
        case {"shape": [*shape], "data_offsets": [int(begin), int(end)]} if len(shape) <= _MOST_DIMENSIONS:
            sizes = [size for size in shape if isinstance(size, int) and 0 <= size < 2**63]
            if len(sizes) == len(shape) and 0 <= begin <= end < 2**63 and prod(sizes) <= 8 * (end - begin):
                return end
    raise ValueError("the header has an entry that is no tensor's")
