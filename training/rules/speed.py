"""Rules on packing, attention kernels and gradient checkpointing."""

from collections.abc import Iterator

from training.config.choices import Attention, BatchOrder, Checkpointing, Packing, Precision, Strategy
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.rules.conflict import Conflict, rule


@rule
def packing_needs_a_language_modeling_task(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    concatenates = config.packing in (Packing.PADDING_FREE, Packing.PACKED)
    if concatenates and not config.task.traits.is_language_modeling:
        yield Conflict(
            ("packing", "task"),
            f"{config.task.value} needs separate rows, and {config.packing.value} concatenates them.",
            "Set packing to auto, or task to sft or pretraining.",
            {"packing": "auto"},
        )


@rule
def packing_needs_known_lengths(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    for name, value, plain in (
        ("packing", Packing.PACKED, "padding_free"),
        ("batch_order", BatchOrder.BY_LENGTH, "shuffled"),
    ):
        if config.streaming and getattr(config, name) is value:
            yield Conflict(
                (name, "streaming"),
                f"{name} {value.value} needs the lengths of all rows, and streaming does not know them.",
                f"Set {name} to {plain}, or streaming to false.",
                {name: plain},
            )


@rule
def packed_sequences_are_not_ordered_by_length(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.packing is Packing.PACKED and config.batch_order is BatchOrder.BY_LENGTH:
        yield Conflict(
            ("batch_order", "packing"),
            "Packed sequences all have about max_length tokens, so batch_order by_length has no effect.",
            "Set batch_order to shuffled.",
            {"batch_order": "shuffled"},
            blocking=False,
        )


@rule
def neftune_noise_depends_on_the_length(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.neftune_noise_alpha and config.packing in (Packing.PADDING_FREE, Packing.PACKED):
        yield Conflict(
            ("packing", "neftune_noise_alpha"),
            "NEFTune's noise decreases with the sequence length: for concatenated rows it is too weak.",
            "Set packing to auto, which then pads the rows.",
            {"packing": "auto"},
            blocking=False,
        )


@rule
def attention_kernels_need_their_device(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if not config.attention.flash and config.attention is not Attention.FLEX:
        return
    precision = machine.precision_of(config.precision)
    if machine.kind == "cpu":
        reason = "runs on GPUs only"
        if config.attention is Attention.FLEX:
            reason = "cannot train on CPU: it has no backward pass there, and mixes up masks when recompiled"
    elif config.attention.flash and precision is Precision.FP32:
        reason = "supports only bf16 and fp16"
    else:
        return
    settings = ("attention",) if machine.kind == "cpu" else ("attention", "precision")
    fix = "Set attention to auto" + (", or precision to bf16." if machine.kind == "cuda" else ".")
    yield Conflict(settings, f"{config.attention.value} {reason}.", fix, {"attention": "auto"})


@rule
def offloaded_checkpointing_needs_a_gpu(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.gradient_checkpointing is Checkpointing.OFFLOADED and machine.kind == "cpu":
        yield Conflict(
            ("gradient_checkpointing",),
            "offloaded moves activations from GPU to host memory, and this machine has no GPU.",
            "Set gradient_checkpointing to full.",
            {"gradient_checkpointing": "full"},
            blocking=False,
        )


@rule
def fsdp_does_not_support_selective_checkpointing(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.gradient_checkpointing is Checkpointing.SELECTIVE and config.strategy is Strategy.FSDP:
        yield Conflict(
            ("gradient_checkpointing", "strategy"),
            "FSDP recomputes all layers or none, and selective recomputes every second layer.",
            "Set gradient_checkpointing to full or none.",
            {"gradient_checkpointing": "full"},
        )


@rule
def torch_compile_does_not_support_zero3(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.torch_compile and config.strategy is Strategy.ZERO3:
        yield Conflict(
            ("torch_compile", "strategy"),
            "ZeRO-3 gathers each layer's weights in a hook, and each hook breaks the compiled graph: steps are not faster.",
            "Set torch_compile to false, or strategy to zero2.",
            {"torch_compile": False},
        )
