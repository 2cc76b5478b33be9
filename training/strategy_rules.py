"""The rules of strategies, registered like those in rules.py. Nothing here imports torch."""

from collections.abc import Iterator

from training.config import Attention, Offload, Packing, Quantization, RunConfig, Strategy, Task
from training.order import PAD_MULTIPLE
from training.rules import Conflict, Machine, rule
from training.zero import QUANTIZED

_OFFLOADS = ("offload_param", "offload_optimizer")


@rule
def eight_bit_weights_are_not_sharded(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.quantized is Quantization.INT8 and config.strategy in (Strategy.FSDP, Strategy.ZERO3):
        yield Conflict(
            ("quantization", "strategy"),
            "8-bit weights are not sharded: FSDP parts them from their scales, and bitsandbytes holds on to all of them "
            "under ZeRO-3.",
            "Set quantization to 4bit, or strategy to ddp or zero2.",
            {"quantization": "4bit"},
        )


@rule
def nvme_is_for_zero3(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    for name in _OFFLOADS:
        offloads = getattr(config, name) is Offload.NVME
        if offloads and config.strategy is not Strategy.ZERO3:
            yield Conflict(
                (name, "strategy"),
                "ZeRO stage 3 alone offloads to NVMe.",
                f"Set {name} to cpu, or strategy to zero3.",
                {name: "cpu"},
            )
        elif offloads and config.nvme_path is None:
            yield Conflict(
                (name, "nvme_path"),
                f"{name} is nvme, and nvme_path names no folder to write to.",
                f"Give nvme_path a folder on a fast local disk, or set {name} to cpu.",
                {name: "cpu"},
            )


@rule
def zero_plus_plus_is_for_zero3(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    for name, value in {**dict.fromkeys(QUANTIZED, False), "zero_hpz_partition_size": 1}.items():
        if getattr(config, name) != value and config.strategy is not Strategy.ZERO3:
            yield Conflict(
                (name, "strategy"),
                "ZeRO++ spares traffic that ZeRO stage 3 alone has.",
                f"Set {name} to {str(value).lower()}, or strategy to zero3.",
                {name: value},
            )


@rule
def zero_plus_plus_quantizes_on_gpus(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if machine.kind == "cuda":
        return
    for name in QUANTIZED:
        if getattr(config, name):
            yield Conflict(
                (name,),
                "DeepSpeed quantizes by a CUDA kernel, and this machine has no GPU.",
                f"Set {name} to false.",
                {name: False},
            )


@rule
def second_shards_divide_the_processes(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    parts, processes = config.zero_hpz_partition_size, config.num_processes
    if config.strategy is Strategy.ZERO3 and processes % parts:
        fits = max(size for size in range(1, parts) if processes % size == 0)
        yield Conflict(
            ("zero_hpz_partition_size", "num_processes"),
            f"{processes} processes do not fall into groups of {parts}.",
            "Set zero_hpz_partition_size to a divisor of num_processes, such as the GPUs of one node.",
            {"zero_hpz_partition_size": fits},
        )


@rule
def quantized_frozen_weights_are_an_adapter_s(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if not config.zero_quantized_nontrainable_weights:
        return
    if not config.method.adapts:
        reason = "Every weight trains with method full: none is frozen."
    elif config.quantized is not Quantization.NONE:
        reason = f"The frozen weights are held in {config.quantized.value} already."
    else:
        return
    yield Conflict(
        ("zero_quantized_nontrainable_weights", "method"),
        reason,
        "Set zero_quantized_nontrainable_weights to false, or method to lora.",
        {"zero_quantized_nontrainable_weights": False},
    )


@rule
def shared_sequences_need_zero(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.sequence_parallel_size > 1 and not config.strategy.zero_stage:
        yield Conflict(
            ("sequence_parallel_size", "strategy"),
            "Sequences are shared by DeepSpeed (Ulysses), under ZeRO 1 to 3.",
            "Set sequence_parallel_size to 1, or strategy to zero2.",
            {"sequence_parallel_size": 1},
        )


@rule
def shared_sequences_fall_into_equal_parts(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    size, processes = config.sequence_parallel_size, config.num_processes
    if processes % size:
        reason = f"{processes} processes do not fall into groups of {size}."
    elif PAD_MULTIPLE % size:
        reason = f"Rows are padded to a multiple of {PAD_MULTIPLE} tokens, which {size} processes do not share evenly."
    else:
        return
    fits = max(one for one in range(1, size) if processes % one == 0 and PAD_MULTIPLE % one == 0)
    yield Conflict(
        ("sequence_parallel_size", "num_processes"),
        reason,
        f"Set sequence_parallel_size to a divisor of num_processes and of {PAD_MULTIPLE}.",
        {"sequence_parallel_size": fits},
    )


@rule
def shared_sequences_are_of_one_text(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.sequence_parallel_size == 1:
        return
    if config.task not in (Task.SFT, Task.PRETRAINING):
        reason = f"Task {config.task.value} computes its loss from whole sequences, and Ulysses hands out parts."
        yield Conflict(
            ("sequence_parallel_size", "task"),
            reason,
            "Set sequence_parallel_size to 1.",
            {"sequence_parallel_size": 1},
        )
    if config.packing not in (Packing.AUTO, Packing.NONE) or config.attention not in (Attention.AUTO, Attention.SDPA):
        yield Conflict(
            ("sequence_parallel_size", "packing", "attention"),
            "Shared sequences are padded rows, through PyTorch's SDPA.",
            "Set sequence_parallel_size to 1, or packing and attention to auto.",
            {"packing": "auto", "attention": "auto"},
        )
    if config.streaming:
        yield Conflict(
            ("sequence_parallel_size", "streaming"),
            "A stream gives every process rows of its own.",
            "Set sequence_parallel_size to 1, or streaming to false.",
            {"streaming": False},
        )


@rule
def fsdp_cannot_part_what_encoder_and_decoder_share(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.task is Task.SEQ2SEQ and config.strategy is Strategy.FSDP:
        yield Conflict(
            ("strategy", "task"),
            "Encoder and decoder share their embeddings, which FSDP cannot put into two groups.",
            "Set strategy to zero3, which shards as much.",
            {"strategy": "zero3"},
        )
