"""The state of an optimizer, and the temporary tensors of its step. No torch. All numbers are bytes."""

from training.config.choices import OptimizerName
from training.config.run_config import RunConfig
from training.forecast.formula.trainable import share_in_small_tensors, trains_tables
from training.model_info.shape import ModelShape, Stack

STATE_BYTES = {
    OptimizerName.ADAMW: 8.0,
    OptimizerName.PAGED_ADAMW_32BIT: 8.0,
    OptimizerName.ADAMW_8BIT: 2.03,
    OptimizerName.PAGED_ADAMW_8BIT: 2.03,
    OptimizerName.ADAMW_TORCHAO_8BIT: 2.03,
    OptimizerName.ADAMW_TORCHAO_4BIT: 1.06,
    OptimizerName.ADAFACTOR: 0.02,
    OptimizerName.LION: 4.0,
    OptimizerName.LION_8BIT: 1.02,
    OptimizerName.MUON: 4.0,
    OptimizerName.SGD: 4.0,
}
"""Bytes of optimizer state per trained weight: fp32 moments, or 8-bit ones with a scale per 256 (bitsandbytes, torchao)."""
_FP32 = 4
_BITSANDBYTES = {OptimizerName.ADAMW_8BIT: 8.0, OptimizerName.LION_8BIT: 4.0}
"""Bytes of state per weight that these optimizers keep in fp32."""
_LEAST_8BIT = 4096
"""bitsandbytes keeps the state of smaller tensors in fp32 (min_8bit_size)."""


def state_bytes(config: RunConfig, shape: ModelShape, trained: int, format_: int) -> float:
    """The state of `trained` weights of `format_` bytes each, on all ranks."""
    zero = config.strategy.zero_stage is not None
    if config.optimizer is OptimizerName.ADAMW_ANYPRECISION:
        # Two moments in the format of the weight and, of 16-bit weights, the Kahan compensation; ZeRO updates fp32 weights.
        return trained * (8.0 if zero or format_ == _FP32 else 3.0 * format_)
    if config.optimizer is OptimizerName.SGD and not config.momentum:
        return 0.0
    if config.optimizer is OptimizerName.ADAFACTOR and (zero or config.method.adapts):
        return trained * (_FP32 if zero or not config.method.is_lora else _FP32 / config.lora_r)
    if config.optimizer is OptimizerName.MUON and trains_tables(config):
        # AdamW's second moment of what is not a matrix of a layer.
        outside = (
            shape.parameters - shape.in_layers + sum(one.layers * one.others for one in shape.stacks if one.experts)
        )
        return trained * STATE_BYTES[OptimizerName.MUON] + _FP32 * outside
    if config.optimizer in _BITSANDBYTES and not zero:
        narrow, wide = STATE_BYTES[config.optimizer], _BITSANDBYTES[config.optimizer]
        return trained * narrow + _in_fp32(config, shape, trained) * (wide - narrow)
    # torch's own optimizers keep their state in the format of the weight.
    own = config.optimizer in (OptimizerName.ADAMW, OptimizerName.SGD) and not zero
    return trained * STATE_BYTES[config.optimizer] / (2 if own and format_ == 2 else 1)


def _in_fp32(config: RunConfig, shape: ModelShape, trained: int) -> float:
    """The weights of which bitsandbytes keeps the state in fp32: transformers asks for it for embeddings."""
    if config.method.adapts:
        return trained * share_in_small_tensors(config, shape, _LEAST_8BIT)
    return float(shape.table + shape.positions) if trains_tables(config) else 0.0


def step_bytes(config: RunConfig, shape: ModelShape, format_: int, part: int = 0, *, on_cuda: bool) -> float:
    """Temporary tensors of a step that updates weights of `format_` bytes one by one, or a flat vector of `part` weights.

    Adafactor squares a gradient in fp32 and adds a constant, which makes two tensors, and updates fp32 copies of 16-bit weights
    with fp32 copies of their gradients (transformers/optimization.py). Muon makes an fp32 update, and the 16-bit matrices of its
    iteration (torch/optim/_muon.py). optimi makes the root of the second moment, on a GPU within its kernel.
    """
    if config.optimizer is OptimizerName.MUON and not config.method.adapts:
        matrices = [linear for stack in shape.stacks for linear in stack.linears]
        return max(
            (8.0 * one.inputs * one.outputs + 4.0 * min(one.inputs, one.outputs) ** 2 for one in matrices), default=0.0
        )
    largest = part or max(trained_matrices(config, shape), default=0)
    if config.optimizer is OptimizerName.ADAFACTOR:
        return float(_FP32 * largest * (2 if part or format_ == _FP32 else 4))
    if config.optimizer is OptimizerName.ADAMW_ANYPRECISION and not on_cuda:
        return float(format_ * largest)
    return 0.0


def trained_matrices(config: RunConfig, shape: ModelShape) -> list[int]:
    """The elements of each matrix that full fine-tuning trains, in the model's order; none with an adapter."""
    if config.method.adapts:
        return []
    if config.trainable_layers:
        last = shape.stacks[-1]
        return min(config.trainable_layers, last.layers) * layer_matrices(last)
    layers = [size for stack in shape.stacks for size in stack.layers * layer_matrices(stack)]
    return [size for size in (shape.table, shape.positions, *layers, shape.head) if size]


def layer_matrices(stack: Stack) -> list[int]:
    """The elements of each matrix of a layer. Fused experts are two tensors: gate with up, and down."""
    experts = [_gate_and_up(stack), stack.others // 3] if stack.experts else []
    return [linear.inputs * linear.outputs for linear in stack.linears] + experts


def split_experts(shape: ModelShape) -> int:
    """The elements of fused experts that files hold as two tensors."""
    return sum(stack.layers * _gate_and_up(stack) for stack in shape.stacks if stack.experts)


def _gate_and_up(stack: Stack) -> int:
    return stack.others * 2 // 3
