"""The shape of a model: layers, their linear modules, embeddings and parameter counts. No torch.

training/model_info/families.py computes it from a config.json for known kinds of layers; training/models/layers.py reads it from
the model's class, for every class that transformers has.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import TypeAdapter


class Mixer(StrEnum):
    """How a layer mixes tokens. `OTHER` is one that the formulas do not know; `NONE` is a layer with an MLP only."""

    ATTENTION = "attention"
    LATENT = "latent attention"
    LINEAR = "linear attention"
    STATE_SPACE = "state space"
    CONVOLUTION = "convolution"
    NONE = "none"
    OTHER = "other"


@dataclass(frozen=True)
class Linear:
    """A linear module of a layer: its name within the layer, its input and output widths, and its bias."""

    name: str
    inputs: int
    outputs: int
    bias: bool = False

    @property
    def parameters(self) -> int:
        return self.inputs * self.outputs + (self.outputs if self.bias else 0)


@dataclass(frozen=True)
class Stack:
    """Identical layers of the encoder or the decoder, which need not follow each other.

    `others` counts a layer's parameters outside its linear modules (norms, experts stored as one tensor). `cross` is True if
    it has cross-attention. Each token goes through `routed` of the `experts`, and through a shared MLP of the width `shared`.
    `place` is the path of the list that holds the layers, such as "model.layers.". In latent attention `latent` are the ranks
    that queries (0: none) and keys with values are compressed to, and the size of a value of a head. `state` is the width of
    the inner state of a token: of linear attention its keys and values, of a state space its channels and their states.
    """

    layers: int
    linears: tuple[Linear, ...]
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    gated: bool
    others: int
    cross: bool = False
    qk_norm: bool = False
    experts: int = 0
    routed: int = 0
    shared: int = 0
    mixers: tuple[Mixer, ...] = (Mixer.ATTENTION,)
    latent: tuple[int, int, int] = (0, 0, 0)
    state: tuple[int, int] = (0, 0)
    place: str = ""

    @property
    def attends(self) -> bool:
        """True if its layers compute scores of pairs of tokens."""
        return Mixer.ATTENTION in self.mixers or Mixer.LATENT in self.mixers

    @property
    def layer_parameters(self) -> int:
        return sum(linear.parameters for linear in self.linears) + self.others


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a model, in elements. `table` is the token embedding, `positions` the learned positions, `head` the output
    matrix (0 if it is tied to the token embedding). `more` are the decoder's layers of other kinds, `outside` the linear modules
    outside of layers, and `unused` the parameters that process no text, such as a vision tower: no run trains them.

    `all_linear` are the weights that a LoRA of rank 1 on all linear modules trains, as PEFT counts them (0: not asked); it includes
    experts stored as one tensor where PEFT adapts them. `scores` are those of a scoring model's head, which an adapter trains too.

    `longest` is the longest sequence that the model takes; None if it has no limit or it is not known. `pads` is True if a batch
    without padding would mix its rows.

    `dropout` is the largest rate; without `attends_with_dropout`, attention has none.

    `teacher` is that of the model from which it learns, `reward_models` are those that score its samples, each with the format
    of its weights, as far as there are any and they are known.

    `counted_by` is "formula" or "class". `unknown` names what the formulas do not know of the layers; empty if they know all.
    """

    model_type: str
    hidden: int
    vocab: int
    decoder: Stack
    encoder: Stack | None
    table: int
    positions: int
    head: int
    final_norms: int
    rms_norm: bool
    activation: str
    dropout: float
    attends_with_dropout: bool = True
    more: tuple[Stack, ...] = ()
    outside: tuple[Linear, ...] = ()
    unused: int = 0
    all_linear: int = 0
    scores: int = 0
    longest: int | None = None
    pads: bool = False
    counted_by: str = "formula"
    unknown: str = ""
    teacher: "ModelShape | None" = None
    reward_models: "tuple[tuple[ModelShape, str], ...]" = ()

    @property
    def stacks(self) -> tuple[Stack, ...]:
        decoder = (self.decoder, *self.more)
        return (self.encoder, *decoder) if self.encoder else decoder

    @property
    def layers(self) -> int:
        return sum(stack.layers for stack in self.stacks)

    @property
    def in_layers(self) -> int:
        """Parameters in the transformer's layers."""
        return sum(stack.layers * stack.layer_parameters for stack in self.stacks)

    @property
    def linear_weights(self) -> int:
        """Elements of the linear weights without the output matrix, which quantization packs."""
        layers = sum(stack.layers * linear.inputs * linear.outputs for stack in self.stacks for linear in stack.linears)
        return layers + sum(linear.inputs * linear.outputs for linear in self.outside)

    @property
    def parameters(self) -> int:
        """All parameters, tied ones once."""
        return self.in_layers + self.table + self.positions + self.head + self.final_norms

    @property
    def largest_layer(self) -> int:
        """Parameters of the largest layer."""
        return max(stack.layer_parameters for stack in self.stacks)

    @property
    def mixers(self) -> frozenset[Mixer]:
        """All ways in which its layers mix tokens."""
        return frozenset(mixer for stack in self.stacks for mixer in stack.mixers)


_shapes: TypeAdapter[ModelShape] = TypeAdapter(ModelShape)


def as_document(shape: ModelShape) -> dict[str, Any]:
    """The shape as a JSON object."""
    document: dict[str, Any] = _shapes.dump_python(shape, mode="json")
    return document


def from_document(document: Any) -> ModelShape:
    """The shape that `as_document` wrote. Raises ValueError if it is something else."""
    return _shapes.validate_python(document)
