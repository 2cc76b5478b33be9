"""The dimensions of a model that decide the sizes of its tensors, from its config.json alone.

Heads, hidden size and vocabulary are enough; training/model_info/shape.py needs more, since it counts parameters.
"""

from dataclasses import dataclass

from training.model_info.config_json import (
    HEADS,
    HIDDEN,
    INTERMEDIATE,
    POSITIONS,
    VOCABULARY,
    ModelError,
    Values,
    positive,
    read_config,
    text_config,
)


@dataclass(frozen=True)
class Dimensions:
    """Heads, widths and vocabulary of a model. `positions` is its maximum sequence length; None if it has no limit."""

    heads: int
    hidden: int
    intermediate: int
    vocabulary: int
    positions: int | None = None


def read_dimensions(model: str) -> Dimensions:
    """The dimensions of the model in a folder, or of a config.json.

    Raises:
        ModelError: there is no config.json, or it lacks one of the dimensions.
    """
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
