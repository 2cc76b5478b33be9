"""What autograd keeps of a forward pass, in bytes, worked out from the layers' widths. No torch.

The structure is that of Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022), section 4; the
terms are those of transformers' own layers as PyTorch differentiates them: an operation keeps those of its inputs and outputs
that its derivative needs. A linear layer keeps its input only where its weight trains or an adapter reads the same input; a
product keeps both factors; attention by a fused kernel keeps queries, keys, values, its output and one number a head and token.
"""

from dataclasses import dataclass

from training.model_shape import Linear, ModelShape, Stack


@dataclass(frozen=True)
class Batch:
    """The micro batch that decides: `tokens` go through the layers (padding included), `length` is its longest row.

    `loss_tokens` get logits. For an encoder-decoder, tokens and length are the encoder's, `target_tokens` and `target_length`
    the decoder's. `flat`: rows lie end to end in one.
    """

    rows: int
    length: int
    tokens: int
    loss_tokens: int
    target_length: int = 0
    target_tokens: int = 0
    flat: bool = False


@dataclass(frozen=True)
class Formats:
    """How a run computes: bytes of an element of the stream between layers (`stream`) and in matrix products (`compute`).

    `casts`: autocast copies each product's input. `adapts` names the linear modules that carry an adapter of rank `rank`, none
    where all weights train (`trains`). `fused_dropout`: a dropout mask takes a byte an element, else as much as its input.
    `math_attention`: the kernel keeps the matrix of attention.
    """

    stream: int
    compute: int
    casts: bool
    trains: bool
    adapts: frozenset[str] = frozenset()
    rank: int = 0
    adapter_dropout: bool = False
    on_cuda: bool = True

    def keeps_input(self, linear: Linear) -> bool:
        return self.trains or linear.name in self.adapts


def layer_bytes(shape: ModelShape, stack: Stack, batch: Batch, how: Formats) -> int:
    """Bytes kept for the backward pass of one layer of a stack."""
    decodes = shape.encoder is not None and stack.cross
    tokens = batch.target_tokens if decodes else batch.tokens
    length = batch.target_length if decodes else batch.length
    total = _norms(shape, stack, how) * tokens
    total += sum(_adapter(linear, how) for linear in stack.linears) * tokens
    total += _attention(shape, stack, batch, tokens, length, length, how)
    if decodes:
        total += _attention(shape, stack, batch, tokens, length, batch.length, how, over=batch.tokens)
    total += _mlp(shape, stack, how) * tokens
    total += _dropout(shape, stack, how) * tokens
    return total


def _norms(shape: ModelShape, stack: Stack, how: Formats) -> int:
    """Bytes a token of the layer's norms and of what linear layers keep of their outputs."""
    hidden, norms = shape.hidden, 3 if stack.cross else 2
    kept = 4 * hidden + 8  # x in fp32, its mean and deviation
    if shape.rms_norm and how.trains:
        kept += how.stream * hidden  # scaled x meets the weight
    readers = [one for one in stack.linears if _reads_norm(one, shape) and how.keeps_input(one)]
    if how.casts:
        outs = 2 * hidden * len(readers)
    else:
        groups = {_block(one) for one in readers}
        outs = how.compute * hidden * len(groups)
    return norms * kept + outs


def _reads_norm(linear: Linear, shape: ModelShape) -> bool:
    return linear.inputs == shape.hidden and not _writes_out(linear) and not _reads_encoder(linear)


def _reads_encoder(linear: Linear) -> bool:
    return "EncDecAttention" in linear.name and linear.name.rsplit(".", 1)[-1] in ("k", "v")


def _writes_out(linear: Linear) -> bool:
    """Whether its result goes back into the stream between layers."""
    ends = ("o_proj", "down_proj", "c_proj", "out_proj", "fc2", "dense", "dense_4h_to_h", "wo", "o")
    return linear.name.rsplit(".", 1)[-1] in ends


def _block(linear: Linear) -> str:
    return (
        "mlp"
        if any(part in linear.name for part in ("mlp", "fc1", "DenseReluDense"))
        else linear.name.rsplit(".", 1)[0]
    )


def _adapter(linear: Linear, how: Formats) -> int:
    """Bytes a token that a LoRA keeps besides its input: what lies between its two matrices."""
    if linear.name not in how.adapts:
        return 0
    dropped = (how.compute + 1) * linear.inputs if how.adapter_dropout else 0
    return how.rank * how.compute + dropped


def _attention(
    shape: ModelShape, stack: Stack, batch: Batch, tokens: int, length: int, seen: int, how: Formats, over: int = 0
) -> int:
    """Bytes of one attention: `tokens` queries in rows of `length` look at rows of `seen`, `over` tokens of the encoder."""
    queries, keys = stack.heads * stack.head_dim, stack.kv_heads * stack.head_dim
    c = how.compute
    if stack.qk_norm:
        factor = (4 + (c if how.trains else 0)) if how.stream == 4 else 4 + (2 if how.trains else 0)
        normed = tokens * factor * (queries + keys)
    else:
        normed = 0
    kv_tokens = over or tokens
    kept = c * (tokens * queries + kv_tokens * 2 * keys)  # queries and keys as rotated, values
    out = _named(stack, ("o_proj", "c_proj", "out_proj", "dense", "o"))
    kept += c * tokens * queries + 4 * tokens * stack.heads  # the result, and each row's sum of exponents
    if batch.flat and not how.on_cuda and out and how.keeps_input(out):
        kept += c * tokens * queries  # rows attended one by one are put together again
    if how.casts and not how.trains and out and out.name in how.adapts:
        kept += c * tokens * queries
    pairs = batch.rows * stack.heads * length * seen
    if shape.encoder is not None:
        kept += c * pairs  # the position bias, with the mask in it, for each row
        if not how.on_cuda and (shape.dropout or how.trains):
            kept += c * pairs * (3 if shape.dropout else 1)
    elif not how.on_cuda and shape.dropout:
        kept += c * pairs * 3
    elif how.on_cuda and batch.flat:
        kept += 0
    return normed + kept


def _named(stack: Stack, ends: tuple[str, ...]) -> Linear | None:
    return next((one for one in stack.linears if one.name.rsplit(".", 1)[-1] in ends), None)


def _mlp(shape: ModelShape, stack: Stack, how: Formats) -> int:
    """Bytes a token of the MLP; with experts, of those that see the token."""
    wide, c = stack.intermediate * max(stack.routed, 1), how.compute
    down = stack.linears[-1]
    last = c * wide if how.keeps_input(down) or (stack.experts and how.trains) else 0
    if stack.gated:
        gelu_new = 3 if shape.activation in ("gelu_new", "gelu_pytorch_tanh_slow") else 0
        kept = (3 + gelu_new) * c * wide
    else:
        kept = {"gelu_new": 4, "relu": 1}.get(shape.activation, 1) * c * wide
        if shape.activation == "relu":
            last = 0  # its result is what the next layer keeps
    if stack.experts:
        kept += 2 * c * shape.hidden * stack.routed  # the token once for each expert, and what comes back
    return kept + last


def _dropout(shape: ModelShape, stack: Stack, how: Formats) -> int:
    """Bytes a token of the masks of dropout after attention and MLP."""
    if not shape.dropout:
        return 0
    mask = 1 if how.on_cuda else how.compute
    after = 3 if stack.cross else 2
    inner = stack.intermediate * (mask + how.compute) if shape.encoder is not None else 0  # T5 drops within the MLP too
    return after * shape.hidden * mask + inner
