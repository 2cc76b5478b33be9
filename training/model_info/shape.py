"""The shape of a model: layers, their linear modules, embeddings and parameter counts. No torch.

Each family of architectures has a function in training/model_info/families.py. An unknown architecture gets Llama's layout and
`exact=False`; `with_counted` then replaces its computed parameter count by the count in its safetensors headers.
"""

from dataclasses import dataclass, replace


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
    """A sequence of identical layers: the encoder or the decoder.

    `others` counts a layer's parameters outside its linear modules (norms, experts stored as one tensor). `cross` is True if
    it has cross-attention. Each token goes through `routed` of the `experts`.
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
    """The sizes of a model, in elements. `table` is the token embedding, `positions` the learned positions, `head` the output
    matrix (0 if it is tied to the token embedding)."""

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
        """Elements of the layers' linear weights, which quantization packs."""
        return sum(stack.layers * linear.inputs * linear.outputs for stack in self.stacks for linear in stack.linears)

    @property
    def parameters(self) -> int:
        """All parameters, tied ones once: counted in the files if available, else computed."""
        return self.counted or self.in_layers + self.table + self.positions + self.head + self.final_norms

    @property
    def largest_layer(self) -> int:
        """Parameters of the largest layer."""
        return max(stack.layer_parameters for stack in self.stacks)

    def with_counted(self, parameters: int | None) -> "ModelShape":
        """The same shape with the number of parameters in its files."""
        return replace(self, counted=parameters or None)
