"""Computes the bytes of activations that autograd saves in a forward pass of a layer, from the layers' widths. No torch.

The structure follows Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022), section 4. The
terms are those of transformers' layers: PyTorch saves the inputs and outputs of an operation that its derivative needs. A linear
layer saves its input only if its weight trains or an adapter reads that input. A product saves both factors. A fused attention
kernel saves queries, keys, values, its output, and one number per head and token.

Added to that is what other kinds of layers save besides: latent attention (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1), experts
that every token goes through, and gated short convolutions. What state-space layers and linear attention save depends on the
installed kernels; such models are simulated.
"""

from dataclasses import dataclass, replace

from training.model_info.shape import Linear, Mixer, ModelShape, Stack

_POWERS = 3
"""Powers of its matrix that OFT's rotation saves in fp32, with PEFT's five terms of the series."""
_PARALLEL = "gpt_neox"
"""A family whose attention and MLP have the same input."""
_CONVOLUTION_WIDTHS = 7
"""Widths of the hidden size that a gated convolution saves: its three projections, their two products, its input and output."""


@dataclass(frozen=True)
class Batch:
    """The worst micro batch: `tokens` includes padding, `length` is that of the longest row, `loss_tokens` get logits. Of them
    `labeled` have a loss, the only ones that a loss in chunks takes, and that of samples; 0 if unknown.

    For an encoder-decoder, `tokens` and `length` are the encoder's, `target_tokens` and `target_length` the decoder's. `flat` is
    True if rows are concatenated without padding. In the `first_step` there is no optimizer state yet, in the `first_micro` step
    no gradient of an earlier one. `held_out_tokens` get logits in the largest batch of an evaluation; 0 if unknown.
    """

    rows: int
    length: int
    tokens: int
    loss_tokens: int
    target_length: int = 0
    target_tokens: int = 0
    flat: bool = False
    first_step: bool = False
    first_micro: bool = False
    labeled: int = 0
    held_out_tokens: int = 0

    def of(self, shape: ModelShape, stack: Stack) -> tuple[int, int]:
        """The tokens that a stack computes and the length of the longest row: of an encoder-decoder's decoder, or of the others."""
        if shape.encoder is not None and stack.cross:
            return self.target_tokens, self.target_length
        return self.tokens, self.length


@dataclass(frozen=True)
class Formats:
    """Number formats and adapter of a run: bytes per element between layers (`stream`) and in matrix products (`compute`).

    `autocast` is True if it is on, `casts` if it copies each product's input, `trains` if all weights train. `adapts` names the
    linear modules with an adapter of rank `rank`. On CUDA a dropout mask takes one byte per element, on CPU as much as its
    input. With `eager`, attention stores its probabilities, and with `softcaps` its capped scores. With `keeps_inputs`, each
    linear layer saves its input. `scales_outputs` is True if an adapter also trains scales of outputs (DoRA), `only_scales` if
    it trains scales only, of fixed matrices (VeRA). `adapts_experts` is True if fused experts have an adapter, `copies_weights`
    if an adapter multiplies its dropped inputs with a copy of the weight (DoRA). An adapter that `upcasts` has fp32 weights and
    copies its 16-bit inputs to that format; one with `whole_products` multiplies its inputs with the product of its matrices,
    which has the size of the weight (LoHa). One that `rotates` its inputs does so in blocks of this size (OFT). Without `flash`
    kernels, keys and values are repeated for each query head.
    """

    stream: int
    compute: int
    casts: bool
    trains: bool
    adapts: frozenset[str] = frozenset()
    rank: int = 0
    adapter_dropout: bool = False
    on_cuda: bool = True
    eager: bool = False
    keeps_inputs: bool = False
    softcaps: bool = False
    scales_outputs: bool = False
    only_scales: bool = False
    whole_products: bool = False
    rotates: int = 0
    adapts_experts: bool = False
    copies_weights: bool = False
    upcasts: bool = False
    autocast: bool = False
    flash: bool = True

    @property
    def adapter(self) -> int:
        """Bytes per element in an adapter."""
        return 4 if self.upcasts else self.compute

    def keeps_input(self, linear: Linear) -> bool:
        """True if a linear layer saves its input. An adapter with dropout saves what it drops of it instead."""
        reads = linear.name in self.adapts and not self.adapter_dropout and not self.only_scales
        return self.trains or self.keeps_inputs or reads


def layer_bytes(shape: ModelShape, stack: Stack, batch: Batch, formats: Formats) -> int:
    """Bytes saved for the backward pass of one layer of a stack, of any kind."""
    if not stack.layers or not stack.linears:
        return 0
    tokens, _ = batch.of(shape, stack)
    total = _plain_layer(shape, stack if stack.attends else replace(stack, heads=0, kv_heads=0), batch, formats)
    total += tokens * (_shared(stack, formats) + _latent(stack, formats))
    if stack.experts and formats.adapts_experts:
        total += formats.compute * stack.others  # PEFT adds the adapter to the weights, and their product saves the sum
    if Mixer.CONVOLUTION in stack.mixers:
        total += tokens * _CONVOLUTION_WIDTHS * formats.compute * shape.hidden
    return max(int(total), 0)


def _plain_layer(shape: ModelShape, stack: Stack, batch: Batch, formats: Formats) -> int:
    """Bytes that a layer with attention and an MLP or routed experts saves."""
    tokens, length = batch.of(shape, stack)
    total = _norms(shape, stack, formats) * tokens
    total += sum(_adapter(linear, formats) for linear in stack.linears) * tokens
    total += _attention(shape, stack, batch, tokens, length, length, formats)
    if shape.encoder is not None and stack.cross:
        total += _attention(shape, stack, batch, tokens, length, batch.length, formats, key_tokens=batch.tokens)
    total += _mlp(shape, stack, formats) * tokens
    total += adapter_weights(stack, formats)
    if formats.keeps_inputs and formats.casts:  # the adapters' copies do not replace what the quantized products keep
        adapted = (one for one in stack.linears if one.name in formats.adapts and _writes_out(one))
        total += tokens * formats.compute * sum(one.inputs for one in adapted)
    total += _dropout(shape, stack, formats) * tokens
    return total


def adapter_weights(stack: Stack, formats: Formats) -> int:
    """Bytes of the weights that an adapter computes in each pass of a layer and saves: LoHa's products, DoRA's unpacked or cast
    weights, OFT's rotations, autocast's copies of VeRA's fixed matrices."""
    adapted = [linear for linear in stack.linears if linear.name in formats.adapts]
    if formats.whole_products:
        return sum(formats.adapter * linear.inputs * linear.outputs for linear in adapted)
    if formats.rotates:  # powers of a skew-symmetric matrix, and the rotation (Cayley's series)
        return sum(formats.rotates * linear.inputs * (4 * _POWERS + formats.compute) for linear in adapted)
    if formats.copies_weights:
        return sum(formats.compute * linear.inputs * linear.outputs for linear in adapted)
    if formats.only_scales and formats.casts:
        return sum(formats.compute * formats.rank * (linear.inputs + linear.outputs) for linear in adapted)
    return 0


def position_biases(shape: ModelShape, batch: Batch, formats: Formats) -> int:
    """Bytes of T5's position biases, of the encoder and of the decoder, which all layers share: as looked up, and transposed."""
    encoder = shape.encoder
    if encoder is None:
        return 0
    return 2 * formats.compute * (encoder.heads * batch.length**2 + shape.decoder.heads * batch.target_length**2)


def quantized_inputs(shape: ModelShape, stack: Stack, batch: Batch, formats: Formats) -> int:
    """Bytes of the inputs of a layer's linear modules, which bitsandbytes keeps in attributes of its function: checkpointing, which
    replaces saved tensors, does not free them."""
    tokens, _ = batch.of(shape, stack)
    normed = {_block(linear) for linear in stack.linears if _reads_norm(linear, shape)}
    others = sum(linear.inputs for linear in stack.linears if _writes_out(linear))
    return formats.compute * tokens * (shape.hidden * len(normed) + others)


def _norms(shape: ModelShape, stack: Stack, formats: Formats) -> int:
    """Bytes per token of the layer's norms and of their outputs, as linear layers save them."""
    hidden, norms = shape.hidden, 3 if stack.cross else _number_of_norms(shape, stack)
    saved = 4 * hidden + 8  # x in fp32, its mean and deviation
    if shape.model_type == _PARALLEL and formats.stream == 4:
        norms -= 1  # attention and MLP read the same x
    if shape.rms_norm and formats.trains:
        saved += formats.stream * hidden  # scaled x, the factor of the weight
    readers = [linear for linear in stack.linears if _reads_norm(linear, shape) and formats.keeps_input(linear)]
    if formats.casts or formats.upcasts:
        outputs = formats.adapter * hidden * len(readers)
    else:
        groups = {_block(linear) for linear in readers}
        outputs = formats.compute * hidden * len(groups)
    return norms * saved + outputs


def _number_of_norms(shape: ModelShape, stack: Stack) -> int:
    """Two, or four if attention and MLP are also followed by one (Gemma 2). All weights outside of linear modules are theirs,
    except in layers with experts."""
    outside = stack.others - (2 * stack.head_dim if stack.qk_norm else 0)
    return max(2, min(outside // shape.hidden, 4)) if shape.rms_norm and not stack.experts else 2


def _reads_norm(linear: Linear, shape: ModelShape) -> bool:
    return linear.inputs == shape.hidden and not _writes_out(linear) and not _reads_encoder(linear)


def _reads_encoder(linear: Linear) -> bool:
    return "EncDecAttention" in linear.name and linear.name.rsplit(".", 1)[-1] in ("k", "v")


def _writes_out(linear: Linear) -> bool:
    """True if its output is added to the stream between layers."""
    ends = ("o_proj", "down_proj", "c_proj", "out_proj", "fc2", "dense", "dense_4h_to_h", "wo", "o")
    return linear.name.rsplit(".", 1)[-1] in ends


def _block(linear: Linear) -> str:
    in_mlp = any(part in linear.name for part in ("mlp", "fc1", "DenseReluDense"))
    return "mlp" if in_mlp else linear.name.rsplit(".", 1)[0]


def _adapter(linear: Linear, formats: Formats) -> int:
    """Bytes per token that a LoRA saves besides its input: the output of its first matrix. DoRA also saves the outputs of layer and
    adapter, VeRA that of its second matrix.
    """
    if linear.name not in formats.adapts:
        return 0
    # Autocast does not reach dropout, whose input has the format of the adapter's weights.
    mask = 1 if formats.on_cuda else 4 if formats.casts else formats.adapter
    dropped = (formats.adapter + mask) * linear.inputs if formats.adapter_dropout else 0
    scaled = (formats.compute + formats.adapter) * formats.scales_outputs + formats.adapter * formats.only_scales
    return formats.rank * formats.adapter + scaled * linear.outputs + dropped


def _attention(
    shape: ModelShape,
    stack: Stack,
    batch: Batch,
    tokens: int,
    length: int,
    key_length: int,
    formats: Formats,
    key_tokens: int = 0,
) -> int:
    """Bytes of one attention: `tokens` queries in rows of `length`, and keys in rows of `key_length`.

    `key_tokens` are the encoder's tokens in cross-attention; 0 means the same as `tokens`.
    """
    queries, keys = stack.heads * stack.head_dim, stack.kv_heads * stack.head_dim
    c = formats.compute
    normed = 0
    if stack.qk_norm:
        factor = (4 + (c if formats.trains else 0)) if formats.stream == 4 else 4 + (2 if formats.trains else 0)
        normed = tokens * factor * (queries + keys)
    without_flash = formats.on_cuda and not formats.flash
    # Repeated for each query head.
    saved_keys = queries if (formats.eager and shape.encoder is None) or without_flash else keys
    # Dropout on CPU leads to a kernel that computes in fp32.
    in_fp32 = shape.dropout > 0 and shape.attends_with_dropout and not formats.on_cuda
    # Rotated queries and keys, values.
    saved = (4 if in_fp32 else c) * (tokens * queries + (key_tokens or tokens) * 2 * saved_keys)
    output = _named(stack, ("o_proj", "c_proj", "out_proj", "dense", "o"))
    saved += c * tokens * queries + 4 * tokens * stack.heads  # the result, and each row's log-sum-exp
    if batch.flat and (without_flash or not formats.on_cuda) and output and formats.keeps_input(output):
        saved += c * tokens * queries  # the rows' results, concatenated
    if (formats.casts or formats.upcasts) and not formats.trains and output and output.name in formats.adapts:
        saved += formats.adapter * tokens * queries
    pairs = batch.rows * stack.heads * length * key_length
    if shape.encoder is not None:
        # The mask, or the probabilities, or both; with dropout the probabilities, its mask and its result.
        saved += pairs * (12 if in_fp32 else 2 * c if formats.eager else c)
    elif formats.eager:
        whole = stack.heads * tokens * tokens if batch.flat else pairs
        # Capped scores, fp32 probabilities, and their copy for the product with the values.
        saved += whole * (4 + (c if c != 4 else 0) + (c if formats.softcaps else 0))
    elif in_fp32:
        saved += 4 * pairs * 3
    return normed + saved


def attention_gradients(shape: ModelShape, stack: Stack, batch: Batch, formats: Formats) -> int:
    """Bytes in the backward pass of eager attention beyond what it saves, less what the MLP has saved and freed by then: the
    gradients of the probabilities and of the scores."""
    if not (formats.eager and stack.attends and stack.linears) or shape.encoder is not None:
        return 0
    scores = stack.heads * (batch.tokens**2 if batch.flat else batch.rows * batch.length**2)
    return scores * (4 + formats.compute) - _mlp(shape, stack, formats) * batch.tokens


def _named(stack: Stack, ends: tuple[str, ...]) -> Linear | None:
    return next((linear for linear in stack.linears if linear.name.rsplit(".", 1)[-1] in ends), None)


def _mlp(shape: ModelShape, stack: Stack, formats: Formats) -> int:
    """Bytes per token of the MLP, or of the experts that the token is routed to."""
    wide = stack.intermediate * max(stack.routed, 1)
    # Autocast does not reach fused experts.
    c = max(formats.compute, formats.stream) if stack.experts else formats.compute
    down = stack.linears[-1]
    last = formats.adapter * wide if formats.keeps_input(down) or (stack.experts and formats.trains) else 0
    # Written out with a power, which CUDA's autocast computes in fp32: of that power on all is fp32 but the halved input.
    power = 4 if formats.autocast and formats.on_cuda else c
    gelu = 3 * power + c if shape.activation in ("gelu_new", "gelu_pytorch_tanh_slow") else 0
    if stack.gated:
        saved = (gelu + power + c if gelu else 3 * c) * wide
    else:
        saved = (gelu or c) * wide
        if shape.activation == "relu":
            last = 0  # ReLU's output, which the next linear layer saves
    if stack.experts:
        saved += 2 * c * shape.hidden * stack.routed  # each expert's input and output
    return saved + last


def _dropout(shape: ModelShape, stack: Stack, formats: Formats) -> int:
    """Bytes per token of the dropout masks after attention and MLP."""
    if not shape.dropout:
        return 0
    mask = 1 if formats.on_cuda else formats.compute
    after = 3 if stack.cross else 2
    # T5 also has dropout within the MLP.
    inner = stack.intermediate * (mask + formats.compute) if shape.encoder is not None else 0
    return after * shape.hidden * mask + inner


def _shared(stack: Stack, formats: Formats) -> int:
    """Bytes per token of the experts that every token goes through, a gated MLP like the others."""
    return (4 if formats.trains else 3) * formats.compute * stack.shared


def _latent(stack: Stack, formats: Formats) -> int:
    """Bytes per token that latent attention saves beyond attention with as many channels for values as for keys: the norms of the
    compressed queries and keys, less the narrower values and results."""
    queries, keys, value = stack.latent
    if not value:
        return 0
    norms = sum((4 + (formats.stream if formats.trains else 0) + formats.compute) * rank for rank in (queries, keys))
    return norms - 2 * formats.compute * stack.heads * (stack.head_dim - value)
