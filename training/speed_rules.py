"""Rules of packing, attention kernels and recomputed activations; no torch."""

from collections.abc import Iterator

from training.config import Attention, BatchOrder, Checkpointing, Packing, Precision, RunConfig, Strategy, Task
from training.rules import Conflict, Machine, rule


@rule
def rows_are_laid_end_to_end_for_language_models(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    asked = config.packing in (Packing.PADDING_FREE, Packing.PACKED)
    if asked and config.task not in (Task.SFT, Task.PRETRAINING):
        yield Conflict(
            ("packing", "task"),
            f"The rows of {config.task.value} are looked at as a whole, and {config.packing.value} leaves a model tokens alone.",
            "Set packing to auto, or task to sft or pretraining.",
            {"packing": "auto"},
        )


@rule
def packs_are_made_of_known_lengths(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    for name, value, plain in (
        ("packing", Packing.PACKED, "padding_free"),
        ("batch_order", BatchOrder.BY_LENGTH, "shuffled"),
    ):
        if config.streaming and getattr(config, name) is value:
            yield Conflict(
                (name, "streaming"),
                f"{name} {value.value} goes by the lengths of all rows, and a stream is never seen whole.",
                f"Set {name} to {plain}, or streaming to false.",
                {name: plain},
            )


@rule
def packs_have_an_order_of_their_own(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.packing is Packing.PACKED and config.batch_order is BatchOrder.BY_LENGTH:
        yield Conflict(
            ("batch_order", "packing"),
            "Packs are all about max_length long, so that there is nothing to order by.",
            "Set batch_order to shuffled.",
            {"batch_order": "shuffled"},
            blocking=False,
        )


@rule
def neftune_s_noise_goes_by_the_padded_length(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.neftune_noise_alpha and config.packing in (Packing.PADDING_FREE, Packing.PACKED):
        yield Conflict(
            ("packing", "neftune_noise_alpha"),
            "NEFTune's noise shrinks with the length of what it is added to: for rows laid end to end it is weaker than meant.",
            "Set packing to auto, which pads the rows then.",
            {"packing": "auto"},
            blocking=False,
        )


@rule
def attention_kernels_have_their_devices(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if not config.attention.flash and config.attention is not Attention.FLEX:
        return
    precision = machine.best_precision if config.precision is Precision.AUTO else config.precision
    if machine.kind == "cpu":
        reason = "runs on GPUs alone"
        if config.attention is Attention.FLEX:
            reason = "cannot train on CPU: it has no backward pass there, and compiled anew it mixes up masks"
    elif config.attention.flash and precision is Precision.FP32:
        reason = "computes in bf16 and fp16 alone"
    else:
        return
    settings = ("attention",) if machine.kind == "cpu" else ("attention", "precision")
    fix = "Set attention to auto" + (", or precision to bf16." if machine.kind == "cuda" else ".")
    yield Conflict(settings, f"{config.attention.value} {reason}.", fix, {"attention": "auto"})


@rule
def host_memory_is_all_that_a_cpu_has(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.gradient_checkpointing is Checkpointing.OFFLOADED and machine.kind == "cpu":
        yield Conflict(
            ("gradient_checkpointing",),
            "offloaded moves activations from GPU to host memory, and this machine has no GPU: they would only be copied.",
            "Set gradient_checkpointing to full.",
            {"gradient_checkpointing": "full"},
            blocking=False,
        )


@rule
def fsdp_recomputes_every_layer(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.gradient_checkpointing is Checkpointing.SELECTIVE and config.strategy is Strategy.FSDP:
        yield Conflict(
            ("gradient_checkpointing", "strategy"),
            "FSDP wraps every layer alike, and selective recomputes every second one.",
            "Set gradient_checkpointing to full or none.",
            {"gradient_checkpointing": "full"},
        )


@rule
def compiled_models_are_whole(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.torch_compile and config.strategy is Strategy.ZERO3:
        yield Conflict(
            ("torch_compile", "strategy"),
            "ZeRO-3 gathers each layer's weights in hooks, at each of which a compiled model breaks off: nothing gets faster.",
            "Set torch_compile to false, or strategy to zero2.",
            {"torch_compile": False},
        )
