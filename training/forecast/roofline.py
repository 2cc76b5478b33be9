"""How long a step takes at best, by a roofline: each kind of work takes the time of its arithmetic or of its memory traffic. And a
coarse estimate that only orders configurations.

Williams, Waterman and Patterson, "Roofline: An Insightful Visual Performance Model" (2009). Arithmetic is 2 FLOP per weight and
token in a forward pass, as much for the gradients of a layer's inputs, and again for those of its weights if they train (Kaplan
et al. 2020); attention adds 4 FLOP per pair of tokens and channel (Korthikanti et al. 2022, appendix A). No torch.
"""

from dataclasses import dataclass

from training.config.choices import Checkpointing, Method, Offload, Precision, Quantization, Strategy
from training.config.run_config import RunConfig
from training.forecast.formula.activations import Batch, Formats, layer_bytes
from training.forecast.formula.sizes import Sizes, resolved, sizes_of
from training.forecast.gpus import Card
from training.model_info.shape import ModelShape, Stack
from training.tables import only

_FP32_SHARE = 0.125
"""The share of the 16-bit peak that fp32 products reach: 1/2 on consumer cards, 1/16 on data-center cards without TF32."""
_DEQUANTIZED = 1.25
"""Time of a product with 4- or 8-bit weights, which are dequantized in each pass, compared with 16-bit ones."""
PCIE = 20e9
"""Bytes per second between a GPU and host memory: measured copies over PCIe 4 x16."""
NVME = 4e9
"""Bytes per second of a fast NVMe disk."""
HOST_ADAM = 2e9
"""Weights per second that AdamW updates on a server's CPU."""
_STREAMED = 0.5  # of the copies of activations to host memory, the share for which the GPU waits
_LAYER_BYTES = 34
"""Saved per token and unit of width in 16 bits (Korthikanti et al., 2022, equation 2, without the scores)."""
EFFICIENCY = (0.3, 0.7)
"""The share of the roofline that real runs reach, before runs on this GPU are measured: 30 to 55% of the peak in published runs
(Chowdhery et al. 2022, table 3), which is more of the roofline, since that includes memory traffic."""


@dataclass(frozen=True)
class Roofline:
    """Seconds of an optimizer step on each rank at best: `compute` for the passes and the optimizer, which no run reaches, and
    `moving` for communication and copies. `tokens` are those of the step over all ranks, `flops` the arithmetic of a rank."""

    compute: float
    moving: float
    tokens: float
    flops: float

    def seconds(self, efficiency: float) -> float:
        """Seconds of a step at this share of the roofline."""
        return self.compute / efficiency + self.moving


def roofline(config: RunConfig, shape: ModelShape, card: Card, batch: Batch) -> Roofline:
    """The roofline of a step with micro batches like `batch`, which is an average one."""
    sizes = sizes_of(config, shape, card)
    micro, share = config.gradient_accumulation_steps, config.sequence_parallel_size
    fp32 = resolved(config.precision, card) is Precision.FP32
    peak = card.flops * (_FP32_SHARE if fp32 else 1.0)
    forward = _forward_flops(shape, batch) / share
    passes = 2 + (1 if sizes.trained > shape.parameters // 2 else 0) + _recomputed(config)
    flops = micro * forward * passes
    products = flops / peak * (1.0 if config.quantized is Quantization.NONE else _DEQUANTIZED)
    weights = micro * passes * shape.parameters * sizes.compute / card.memory_rate
    seconds = max(products, weights) + micro * _traffic(config, shape, batch, sizes) / share / card.memory_rate
    seconds += 3 * (sizes.optimizer + sizes.gradients) / card.memory_rate
    tokens_here = micro * max(batch.tokens, batch.target_tokens) / share
    moving = moving_seconds(config, shape, card, tokens_here)
    tokens = tokens_here * config.num_processes
    return Roofline(seconds, moving, tokens, flops)


_RECOMPUTED = {
    Checkpointing.NONE: 0.0, Checkpointing.SELECTIVE: 0.5, Checkpointing.FULL: 1.0, Checkpointing.OFFLOADED: 1.0,
}  # fmt: skip
"""The share of the forward pass that the backward pass computes again."""


def _recomputed(config: RunConfig) -> float:
    return _RECOMPUTED[config.gradient_checkpointing]


def _forward_flops(shape: ModelShape, batch: Batch) -> float:
    total = 2.0 * shape.hidden * shape.vocab * batch.loss_tokens
    for stack in shape.stacks:
        tokens, length = batch.of(shape, stack)
        # Causal attention computes half of the pairs.
        pairs = tokens * length * (1.0 if stack is shape.encoder else 0.5)
        total += stack.layers * (
            2.0 * active_weights(shape, stack) * tokens + 4.0 * pairs * stack.heads * stack.head_dim
        )
    return total


def active_weights(shape: ModelShape, stack: Stack) -> int:
    """The weights of a layer that a token goes through."""
    linear = sum(one.inputs * one.outputs for one in stack.linears)
    expert = (3 if stack.gated else 2) * shape.hidden * stack.intermediate
    return linear + stack.routed * expert if stack.experts else linear


def _traffic(config: RunConfig, shape: ModelShape, batch: Batch, sizes: Sizes) -> float:
    """Bytes that the passes over a micro batch move beside the weights: what is saved is written once and read once, and so are
    its gradients and the logits."""
    formats = Formats(
        stream=sizes.stream, compute=sizes.compute, casts=sizes.casts, trains=not config.method.adapts, adapts=sizes.adapts,
        rank=config.lora_r if config.method.is_lora else 8, on_cuda=True,
    )  # fmt: skip
    saved = sum(stack.layers * layer_bytes(shape, stack, batch, formats) for stack in shape.stacks)
    return 4.0 * saved * (1 + _recomputed(config) / 2) + 24.0 * batch.loss_tokens * shape.vocab


def step_seconds(config: RunConfig, shape: ModelShape, card: Card, batch: Batch) -> float:
    """Estimated seconds of an optimizer step: arithmetic, communication and copies. Only for ordering configurations.

    Arithmetic is 2 FLOP per weight and token in the forward pass, 4 in the backward pass (2 for frozen weights), and 2 more if the
    forward pass is recomputed (Kaplan et al. 2020, Korthikanti et al. 2022), at half of the GPU's peak, less with few tokens.
    Communication follows Rajbhandari et al. 2020, section 7.
    """
    micro = config.gradient_accumulation_steps
    tokens = config.micro_batch_size * micro * max(batch.tokens, batch.target_tokens) / max(batch.rows, 1)
    size = shape.parameters
    bytes_ = 2 if resolved(config.precision, card).value != "fp32" else 4
    recomputation = {
        Checkpointing.NONE: 0.0, Checkpointing.SELECTIVE: 1.0, Checkpointing.FULL: 2.0, Checkpointing.OFFLOADED: 2.2,
    }  # fmt: skip
    work = (6 if config.method is Method.FULL else 4) + recomputation[config.gradient_checkpointing]
    micro_tokens = tokens / micro
    efficiency = 0.5 * micro_tokens / (micro_tokens + 512) * (1.0 if bytes_ == 2 else 0.25)
    seconds = work * size * tokens / (card.flops * efficiency)
    if config.quantized is not Quantization.NONE:
        seconds += micro * 3 * size * 2 / card.memory_rate + 0.25 * seconds  # weights are dequantized in each pass
    return seconds + moving_seconds(config, shape, card, tokens)


def moving_seconds(config: RunConfig, shape: ModelShape, card: Card, tokens: float) -> float:
    """Estimated seconds of a step of `tokens` on each GPU for communication, and for copies of offloaded state and activations."""
    micro, size, seconds = config.gradient_accumulation_steps, shape.parameters, 0.0
    bytes_ = 2 if resolved(config.precision, card).value != "fp32" else 4
    trained = size if config.method is Method.FULL else size * 0.005
    distributed = config.num_processes > 1
    link = card.link_rate if distributed else float("inf")
    if config.strategy is Strategy.ZERO3 or config.strategy is Strategy.FSDP:
        seconds += 1.3 * micro * 3 * size * bytes_ / link + micro * 0.03
    elif distributed:
        seconds += (micro if config.strategy.zero_stage == 2 else 1) * 2 * trained * bytes_ / link
    seconds += _copies(config, size * bytes_, trained, micro)
    return seconds + _activation_copies(config, shape, tokens, bytes_)


def _copies(config: RunConfig, weights: float, trained: float, micro: int) -> float:
    """Seconds for copies of offloaded state, and for optimizer steps on the CPU."""
    rate = only({Offload.CPU: PCIE, Offload.NVME: NVME})
    seconds, ranks = 0.0, config.num_processes
    whole = config.strategy is Strategy.FSDP and config.offload_param is not Offload.NONE
    if config.offload_param is not Offload.NONE:
        seconds += 2 * micro * weights / rate[config.offload_param] / ranks
    if whole or config.offload_optimizer is not Offload.NONE:
        seconds += trained / HOST_ADAM + 4 * trained / PCIE / ranks
    if config.offload_optimizer is Offload.NVME:
        seconds += 24 * trained / NVME / ranks
    return seconds


def _activation_copies(config: RunConfig, shape: ModelShape, tokens: float, bytes_: int) -> float:
    """Seconds of a step in which the GPU waits for activations to and from host memory."""
    if not config.offload_activations:
        return 0.0
    width = 1 if config.recomputes else _LAYER_BYTES / 2  # recomputed layers keep their input only
    return _STREAMED * 2 * shape.layers * tokens * shape.hidden * width * bytes_ / PCIE
