"""The optimizers: what each is called, takes, keeps and supports is one row of `OPTIMIZERS`. No torch."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

_FP32 = 4
LEAST_QUANTIZED = 4096
"""bitsandbytes and torchao keep the state of a weight with fewer elements in fp32."""


class QuantizedState(NamedTuple):
    """Optimizer state of so many moments, with bytes per element of each, and elements per fp32 scale."""

    moments: int
    width: float
    block: int

    @property
    def bytes_per_weight(self) -> float:
        return self.moments * (self.width + _FP32 / self.block)

    def bytes_of(self, elements: int) -> int:
        """The bytes of a tensor's state."""
        if elements < LEAST_QUANTIZED:
            return self.moments * _FP32 * elements
        return self.moments * (int(self.width * elements) + _FP32 * -(-elements // self.block))


class OptimizerName(StrEnum):
    ADAMW = "adamw"
    ADAMW_8BIT = "adamw_8bit"
    PAGED_ADAMW_8BIT = "paged_adamw_8bit"
    PAGED_ADAMW_32BIT = "paged_adamw_32bit"
    ADAMW_TORCHAO_8BIT = "adamw_torchao_8bit"
    ADAMW_TORCHAO_4BIT = "adamw_torchao_4bit"
    ADAMW_ANYPRECISION = "adamw_anyprecision"
    ADAFACTOR = "adafactor"
    LION = "lion"
    LION_8BIT = "lion_8bit"
    MUON = "muon"
    SGD = "sgd"

    @property
    def traits(self) -> "Optimizer":
        """Its row of `OPTIMIZERS`."""
        return OPTIMIZERS[self]


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """What the settings, rules, forecasts and the trainer need to know of an optimizer. What is not stated does not hold."""

    transformers_name: str = ""
    """The value of `TrainingArguments.optim`; empty if training/trainer/optimizers.py makes it."""
    state: float | QuantizedState
    """The bytes of its state per trained weight: fp32 moments, or quantized ones (Dettmers et al., "8-bit Optimizers via
    Block-wise Quantization", 2022; bitsandbytes/optim/optimizer.py, torchao/optim/adam.py)."""
    betas: bool = False
    """adam_beta1 and adam_beta2 are arguments of it."""
    epsilon: bool = False
    """adam_epsilon is an argument of it."""
    momentum: bool = False
    """momentum is an argument of it."""
    rate_factor: float | None = None
    """The share of AdamW's bounds of learning rates that holds for it; None: no bound is known."""
    built_in: bool = False
    """torch or transformers has it, so that it needs no other library."""
    fsdp: bool = False
    """It supports DTensors, as found by running each: bitsandbytes' do not, Adafactor mixes them with plain tensors, and torchao's
    fail if a matrix is not sharded evenly."""
    elementwise: bool = False
    """Its state has an element for each weight, or one for all, and can be divided among other ranks."""
    state_in_weights_format: bool = False
    """A 16-bit weight has 16-bit state, without ZeRO."""
    fp32_state_of_embeddings: bool = False
    """transformers asks it to quantize no state of embeddings."""
    paged: bool = False
    """The state is in memory that the GPU pages to the host."""

    @property
    def state_bytes(self) -> float:
        """The bytes of its state per trained weight."""
        return self.state.bytes_per_weight if isinstance(self.state, QuantizedState) else self.state


_TWO_8BIT = QuantizedState(2, 1.0, 256)
_LION_FACTOR = 0.3  # Chen et al., "Symbolic Discovery of Optimization Algorithms" (2023): 3 to 10 times less than AdamW

OPTIMIZERS = {
    OptimizerName.ADAMW: Optimizer(
        # Fused AdamW is one kernel on CUDA and on CPU, and takes a quarter of the time of the loop over tensors.
        transformers_name="adamw_torch_fused", state=8.0, betas=True, epsilon=True, rate_factor=1.0,
        built_in=True, fsdp=True, elementwise=True, state_in_weights_format=True,
    ),
    OptimizerName.ADAMW_8BIT: Optimizer(
        transformers_name="adamw_8bit", state=_TWO_8BIT, betas=True, epsilon=True, rate_factor=1.0,
        fp32_state_of_embeddings=True,
    ),
    OptimizerName.PAGED_ADAMW_8BIT: Optimizer(
        transformers_name="paged_adamw_8bit", state=_TWO_8BIT, betas=True, epsilon=True, rate_factor=1.0,
        fp32_state_of_embeddings=True, paged=True,
    ),
    OptimizerName.PAGED_ADAMW_32BIT: Optimizer(
        transformers_name="paged_adamw_32bit", state=8.0, betas=True, epsilon=True, rate_factor=1.0,
        elementwise=True, paged=True,
    ),
    OptimizerName.ADAMW_TORCHAO_8BIT: Optimizer(
        transformers_name="adamw_torch_8bit", state=_TWO_8BIT, betas=True, epsilon=True, rate_factor=1.0,
    ),
    OptimizerName.ADAMW_TORCHAO_4BIT: Optimizer(
        transformers_name="adamw_torch_4bit", state=QuantizedState(2, 0.5, 128), betas=True, epsilon=True,
        rate_factor=1.0,
    ),
    OptimizerName.ADAMW_ANYPRECISION: Optimizer(
        # With fp32 weights; training/forecast/formula/sizes.py has what 16-bit weights need.
        state=8.0, betas=True, epsilon=True, rate_factor=1.0, fsdp=True, elementwise=True,
    ),
    OptimizerName.ADAFACTOR: Optimizer(
        transformers_name="adafactor", state=0.02, rate_factor=1.0, built_in=True,
    ),
    OptimizerName.LION: Optimizer(
        transformers_name="lion_32bit", state=4.0, betas=True, rate_factor=_LION_FACTOR, elementwise=True,
    ),
    OptimizerName.LION_8BIT: Optimizer(
        transformers_name="lion_8bit", state=QuantizedState(1, 1.0, 256), betas=True, rate_factor=_LION_FACTOR,
        fp32_state_of_embeddings=True,
    ),
    OptimizerName.MUON: Optimizer(
        # The state of matrices of layers; training/forecast/formula/sizes.py adds that of other weights.
        state=4.0, betas=True, epsilon=True, momentum=True, built_in=True, fsdp=True,
    ),
    OptimizerName.SGD: Optimizer(
        transformers_name="sgd", state=4.0, momentum=True, built_in=True, fsdp=True, elementwise=True,
        state_in_weights_format=True,
    ),
}  # fmt: skip
