"""The dimensions of a model that decide how large its tensors are, from its config.json alone.

It makes do with less than training/model_shape.py, which counts parameters: heads, hidden size and vocabulary are enough.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.model_files import ModelError

_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "encoder_attention_heads")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "dim")
_INTERMEDIATE = ("intermediate_size", "n_inner", "d_ff", "ffn_dim", "encoder_ffn_dim")
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")
_MOST_BYTES = 16 * 2**20
_FIX = "Give the model's folder or its config.json."


@dataclass(frozen=True)
class Dimensions:
    """Heads, widths and vocabulary of a model. `positions` is the longest sequence it takes; None where it has no limit."""

    heads: int
    hidden: int
    intermediate: int
    vocabulary: int
    positions: int | None = None


def read_dimensions(model: str) -> Dimensions:
    """The dimensions of the model in a folder, or of a config.json.

    Raises:
        ModelError: there is no config.json, or it does not give them.
    """
    try:
        values = json.loads(_text(Path(model).expanduser()))
    except OSError as error:
        raise ModelError(model, f"cannot be read ({error.strerror}).", _FIX) from None
    except (
        ValueError,
        RuntimeError,
    ) as error:  # no JSON, or nested without end; no path, or of a user that is not there
        raise ModelError(model, f"is no config.json ({error}).", _FIX) from None
    found = dimensions_of(values) if isinstance(values, dict) else None
    if found is None:
        raise ModelError(model, "does not give the model's heads, hidden size and vocabulary.", _FIX)
    return found


def _text(path: Path) -> bytes:
    with (path / "config.json" if path.is_dir() else path).open("rb") as stream:
        return stream.read(_MOST_BYTES)


def dimensions_of(values: dict[str, Any]) -> Dimensions | None:
    """The dimensions in the values of a config.json; None where they are not all there."""
    nested = values.get("text_config")  # models that see or hear keep their language part here
    text = nested if isinstance(nested, dict) else values
    heads, hidden, vocabulary = _first(text, _HEADS), _first(text, _HIDDEN), _first(text, ("vocab_size",))
    if not (heads and hidden and vocabulary):
        return None
    relative = "relative_attention_num_buckets" in text  # T5 takes any length, whatever n_positions says
    positions = None if relative else _first(text, _POSITIONS)
    return Dimensions(heads, hidden, _first(text, _INTERMEDIATE) or 4 * hidden, vocabulary, positions)


def _first(values: dict[str, Any], names: tuple[str, ...]) -> int | None:
    return next((value for name in names if isinstance(value := values.get(name), int) and value > 0), None)
