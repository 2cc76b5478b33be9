"""The shape of a model in numbers: layers, their linear modules, embeddings, counts of parameters. No torch.

A family of architectures is a function in training/model_families.py. One that is not named there takes the layout most models
share (Llama's), which `exact` says; counts from safetensors headers, where they are at hand, then take the place of those that
are worked out (`with_counted`).
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Linear:
    """A linear module of a layer: its name within the layer, its widths, and whether it adds a bias."""

    name: str
    inputs: int
    outputs: int
    bias: bool = False

    @property
    def parameters(self) -> int:
        return self.inputs * self.outputs + (self.outputs if self.bias else 0)


@dataclass(frozen=True)
class Stack:
    """Layers of one kind, one after another.

    `norms` counts normalisations of the hidden size, `others` parameters of a layer that are in no linear module (norms,
    experts held as one tensor). `cross` says whether it also attends to an encoder. `experts` of which `routed` see each token.
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

    @property
    def layer_parameters(self) -> int:
        return sum(linear.parameters for linear in self.linears) + self.others


@dataclass(frozen=True)
class ModelShape:
    """A model in numbers. Widths and counts are elements; `table` is the token embedding, `positions` learned positions,
    `head` the output matrix where it is not the token embedding itself."""

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
    exact: bool = True
    counted: int | None = None

    @property
    def stacks(self) -> tuple[Stack, ...]:
        return (self.encoder, self.decoder) if self.encoder else (self.decoder,)

    @property
    def layers(self) -> int:
        return sum(stack.layers for stack in self.stacks)

    @property
    def in_layers(self) -> int:
        """Parameters in the transformer's layers."""
        return sum(stack.layers * stack.layer_parameters for stack in self.stacks)

    @property
    def linear_weights(self) -> int:
        """Elements of the layers' linear weights: those that quantisation packs."""
        return sum(stack.layers * one.inputs * one.outputs for stack in self.stacks for one in stack.linears)

    @property
    def parameters(self) -> int:
        """All parameters, shared ones once: counted in the files where they are at hand, else worked out."""
        return self.counted or self.in_layers + self.table + self.positions + self.head + self.final_norms

    @property
    def largest_layer(self) -> int:
        """Parameters of the largest layer."""
        return max(stack.layer_parameters for stack in self.stacks)

    def with_counted(self, parameters: int | None) -> "ModelShape":
        """The same shape with the parameters that its files hold."""
        return replace(self, counted=parameters or None)


class ShapeError(ValueError):
    """A config.json that says too little: `message` and `fix`."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(f"{message} {fix}")
        self.message, self.fix = message, fix
