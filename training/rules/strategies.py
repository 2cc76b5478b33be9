"""Rules on strategies: sharding, offload to host memory and NVMe, ZeRO++ and sequence parallelism."""

from collections.abc import Iterator

from training.config.choices import Attention, Offload, Packing, Quantization, Strategy
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.config.sharding import QUANTIZED
from training.rules.conflict import Conflict, rule
from training.tokens.order import PAD_MULTIPLE


@rule
def eight_bit_weights_cannot_be_sharded(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.quantized is Quantization.INT8 and config.strategy in (Strategy.FSDP, Strategy.ZERO3):
        yield Conflict(
            ("quantization", "strategy"),
            "8-bit weights cannot be sharded: FSDP separates them from their scales, and under ZeRO-3 bitsandbytes keeps "
            "all of them in memory.",
            "Set quantization to 4bit, or strategy to ddp or zero2.",
            {"quantization": "4bit"},
        )


@rule
def zero_plus_plus_needs_zero3(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    for name, value in {**dict.fromkeys(QUANTIZED, False), "zero_hpz_partition_size": 1}.items():
        if getattr(config, name) != value and config.strategy is not Strategy.ZERO3:
            yield Conflict(
                (name, "strategy"),
                "ZeRO++ works with ZeRO stage 3 only.",
                f"Set {name} to {str(value).lower()}, or strategy to zero3.",
                {name: value},
            )


@rule
def zero_plus_plus_quantization_needs_a_gpu(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if machine.kind == "cuda":
        return
    for name in QUANTIZED:
        if getattr(config, name):
            yield Conflict(
                (name,),
                "DeepSpeed quantizes with a CUDA kernel, and this machine has no GPU.",
                f"Set {name} to false.",
                {name: False},
            )


@rule
def the_hpz_partition_size_divides_the_processes(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    parts, processes = config.zero_hpz_partition_size, config.num_processes
    if config.strategy is Strategy.ZERO3 and processes % parts:
        fits = max(size for size in range(1, parts) if processes % size == 0)
        yield Conflict(
            ("zero_hpz_partition_size", "num_processes"),
            f"{processes} processes cannot be divided into groups of {parts}.",
            "Set zero_hpz_partition_size to a divisor of num_processes, such as the GPUs of one node.",
            {"zero_hpz_partition_size": fits},
        )


@rule
def quantized_frozen_weights_need_an_adapter(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if not config.zero_quantized_nontrainable_weights:
        return
    if not config.method.adapts:
        reason = "Method full has no frozen weights."
    elif config.quantized is not Quantization.NONE:
        reason = f"quantization is {config.quantized.value}: the frozen weights are already quantized."
    else:
        return
    yield Conflict(
        ("zero_quantized_nontrainable_weights", "method"),
        reason,
        "Set zero_quantized_nontrainable_weights to false, or method to lora.",
        {"zero_quantized_nontrainable_weights": False},
    )


@rule
def sequence_parallelism_needs_zero(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.sequence_parallel_size > 1 and not config.strategy.zero_stage:
        yield Conflict(
            ("sequence_parallel_size", "strategy"),
            "Sequence parallelism (Ulysses) needs ZeRO 1 to 3.",
            "Set sequence_parallel_size to 1, or strategy to zero2.",
            {"sequence_parallel_size": 1},
        )


@rule
def sequences_are_split_evenly(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    size, processes = config.sequence_parallel_size, config.num_processes
    if processes % size:
        reason = f"{processes} processes cannot be divided into groups of {size}."
    elif PAD_MULTIPLE % size:
        reason = f"Rows are padded to a multiple of {PAD_MULTIPLE} tokens, which {size} processes cannot split evenly."
    else:
        return
    fits = max(part for part in range(1, size) if processes % part == 0 and PAD_MULTIPLE % part == 0)
    yield Conflict(
        ("sequence_parallel_size", "num_processes"),
        reason,
        f"Set sequence_parallel_size to a divisor of num_processes and of {PAD_MULTIPLE}.",
        {"sequence_parallel_size": fits},
    )


@rule
def sequence_parallelism_needs_padded_rows(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.sequence_parallel_size == 1:
        return
    if not config.task.traits.is_language_modeling:
        reason = (
            f"Task {config.task.value} computes its loss from complete sequences, and sequence parallelism splits them."
        )
        yield Conflict(
            ("sequence_parallel_size", "task"),
            reason,
            "Set sequence_parallel_size to 1.",
            {"sequence_parallel_size": 1},
        )
    if config.packing not in (Packing.AUTO, Packing.NONE) or config.attention not in (Attention.AUTO, Attention.SDPA):
        yield Conflict(
            ("sequence_parallel_size", "packing", "attention"),
            "Sequence parallelism needs padded rows and PyTorch's SDPA.",
            "Set sequence_parallel_size to 1, or packing and attention to auto.",
            {"packing": "auto", "attention": "auto"},
        )
    if config.streaming:
        yield Conflict(
            ("sequence_parallel_size", "streaming"),
            "Streaming gives each process its own rows, and sequence parallelism needs the same rows.",
            "Set sequence_parallel_size to 1, or streaming to false.",
            {"streaming": False},
        )


@rule
def fsdp_does_not_support_seq2seq(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.task.traits.has_encoder and config.strategy is Strategy.FSDP:
        yield Conflict(
            ("strategy", "task"),
            "FSDP does not support embeddings shared by encoder and decoder.",
            "Set strategy to zero3, which also shards all weights.",
            {"strategy": "zero3"},
        )


_OFFLOADS = ("offload_param", "offload_optimizer")


@rule
def optimizer_offload_needs_zero(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.offload_optimizer is Offload.NONE or (config.strategy.zero_stage or 0) >= 1:
        return
    if config.strategy is Strategy.FSDP:
        reason = "FSDP offloads parameters, gradients and optimizer state together, with offload_param."
        fix, changes = "Set offload_optimizer to none and offload_param to cpu.", {"offload_param": "cpu"}
    else:
        reason = "Only ZeRO stages 1 to 3 can offload the optimizer state."
        fix, changes = "Set offload_optimizer to none, or strategy to zero2.", {}
    yield Conflict(("offload_optimizer", "strategy"), reason, fix, changes | {"offload_optimizer": "none"})


@rule
def parameter_offload_needs_zero3(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.offload_param is not Offload.NONE and config.strategy not in (Strategy.ZERO3, Strategy.FSDP):
        yield Conflict(
            ("offload_param", "strategy"),
            "Only ZeRO stage 3 and FSDP can offload parameters.",
            "Set offload_param to none, or strategy to zero3 or fsdp.",
            {"offload_param": "none"},
        )


@rule
def nvme_offload_needs_zero3(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    for name in _OFFLOADS:
        offloads = getattr(config, name) is Offload.NVME
        if offloads and config.strategy is not Strategy.ZERO3:
            yield Conflict(
                (name, "strategy"),
                "Only ZeRO stage 3 can offload to NVMe.",
                f"Set {name} to cpu, or strategy to zero3.",
                {name: "cpu"},
            )
        elif offloads and config.nvme_path is None:
            yield Conflict(
                (name, "nvme_path"),
                f"{name} is nvme, and nvme_path is empty.",
                f"Set nvme_path to a folder on a fast local disk, or {name} to cpu.",
                {name: "cpu"},
            )
