"""Reads a model's config.json: its text_config, values that have several names, and the sizes of its tensors. No other module
parses the file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training import json_files
from training.errors import UserError
from training.files import read_regular

Values = dict[str, Any]
CONFIG_FILE = "config.json"

HIDDEN = ("hidden_size", "n_embd", "d_model", "dim", "n_embed")
HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "encoder_attention_heads")
LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
INTERMEDIATE = ("intermediate_size", "n_inner", "d_ff", "ffn_dim", "encoder_ffn_dim")
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")
VOCABULARY = ("vocab_size",)

_MAX_BYTES = 16 * 2**20
_MOST_VALUES = 200_000
"""Values of a config.json: the longest lists name each module of a model that is not quantized."""
_LARGEST = 2**31
"""Numbers beyond it are no sizes, and their products no numbers that anything calculates with."""
_FIX = "Give the folder of a transformers model."


class ModelError(UserError):
    """A model that cannot be used. `value` is its folder, its id on the hub or its type."""

    def __init__(self, value: str, message: str, fix: str) -> None:
        super().__init__("model", value, message, fix)


def local_path(model: str | Path) -> Path | None:
    """The path that names a model on this machine; None for a hub id, and for the home of an unknown user.

    Only an absolute path is one, or one that begins with `~`: `settle` has looked up all others (worker/runs/settle.py), and a hub
    id must not be read as a path below the folder in which a process happens to run.
    """
    try:
        path = Path(model).expanduser()
    except RuntimeError:
        return None
    return path if path.is_absolute() else None


def local_folder(model: str | Path) -> Path | None:
    """The folder on this machine that `local_path` names; None if there is none."""
    path = local_path(model)
    try:
        return path if path is not None and path.is_dir() else None
    except (OSError, ValueError):  # too long, or with a NUL
        return None


def read_config(model: str | Path) -> Values:
    """The values in a model's config.json, without numbers that are too large for a size. `model` is the model's folder or the
    file itself. Raises ModelError if the file is missing, cannot be read, or is not a JSON object."""
    try:
        path = local_path(model)
        if path is None:
            raise FileNotFoundError
        text = read_regular(path / CONFIG_FILE if path.is_dir() else path, _MAX_BYTES)
        values = json_files.of_file(text, _MOST_VALUES)
    except FileNotFoundError:
        raise ModelError(str(model), "config.json not found.", _FIX) from None
    except OSError as error:
        raise ModelError(str(model), f"config.json cannot be read ({error.strerror}).", _FIX) from None
    except (ValueError, RuntimeError) as error:  # also an unknown user's ~
        raise ModelError(str(model), f"config.json is not valid JSON ({error}).", _FIX) from None
    if not isinstance(values, dict):
        raise ModelError(str(model), "config.json is not a JSON object.", _FIX)
    values = _within_bounds(values)
    nested = values.get("text_config")
    return values | {"text_config": _within_bounds(nested)} if isinstance(nested, dict) else values


def _within_bounds(values: Values) -> Values:
    return {
        name: value for name, value in values.items() if not isinstance(value, (int, float)) or abs(value) <= _LARGEST
    }


def text_config(values: Values) -> Values:
    """The values of the language model: multimodal models keep them under `text_config`."""
    nested = values.get("text_config")
    return nested if isinstance(nested, dict) else values


def positive(values: Values, names: tuple[str, ...]) -> int | None:
    """The first of these names whose value is a positive integer; None if there is none."""
    return next((value for name in names if isinstance(value := values.get(name), int) and value > 0), None)


@dataclass(frozen=True)
class Dimensions:
    """Heads, widths and vocabulary of a model, which decide the sizes of its tensors. `positions` is its maximum sequence length;
    None if it has no limit."""

    heads: int
    hidden: int
    intermediate: int
    vocabulary: int
    positions: int | None = None


def read_dimensions(model: str) -> Dimensions:
    """The dimensions of the model in a folder, or of a config.json. Raises ModelError if there is no config.json, or it lacks one
    of the dimensions."""
    dimensions = dimensions_of(read_config(model))
    if dimensions is None:
        message = "config.json lacks the model's number of heads, hidden size or vocabulary size."
        raise ModelError(model, message, "Give the model's folder or its complete config.json.")
    return dimensions


def dimensions_of(values: Values) -> Dimensions | None:
    """The dimensions in the values of a config.json; None if one is missing."""
    text = text_config(values)
    heads, hidden, vocabulary = positive(text, HEADS), positive(text, HIDDEN), positive(text, VOCABULARY)
    if not (heads and hidden and vocabulary):
        return None
    relative = "relative_attention_num_buckets" in text  # T5 takes any length, whatever n_positions says
    positions = None if relative else positive(text, POSITIONS)
    return Dimensions(heads, hidden, positive(text, INTERMEDIATE) or 4 * hidden, vocabulary, positions)
