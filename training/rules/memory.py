"""What saves memory at the same loss, and the probe (training/trainer/probe.py): when a run can use it, and the rules on it."""

from collections.abc import Iterator

from training.config.choices import Checkpointing, ChunkedLoss, Method, Offload, Precision, Probe, Strategy
from training.config.machine import Machine
from training.config.peft_methods import method_of, targets_head
from training.config.run_config import RunConfig
from training.rules.conflict import Conflict, rule


@rule
def some_runs_cannot_chunk_their_loss(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    name, reason = cannot_chunk(config)
    if config.chunked_loss is ChunkedLoss.ON and config.task.traits.chunks_loss and name:
        yield Conflict(
            ("chunked_loss", name),
            f"The loss cannot be computed in chunks: {reason}.",
            "Set chunked_loss to auto, which then computes it at once.",
            {"chunked_loss": "auto"},
        )


@rule
def activations_are_offloaded_from_a_gpu(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if not config.offload_activations:
        return
    if machine.kind == "cpu":
        reason = "offload_activations moves activations from GPU to host memory, and this machine has no GPU."
    elif config.torch_compile:
        reason = "offload_activations moves each saved tensor in a hook, which torch.compile does not call for compiled parts."
    elif config.strategy is Strategy.ZERO3:
        reason = "ZeRO-3 gathers the weights of each layer for its use, and offload_activations would move them too."
    elif config.gradient_checkpointing is Checkpointing.OFFLOADED:
        reason = "gradient_checkpointing offloaded already keeps what is not recomputed in host memory."
    else:
        return
    yield Conflict(
        ("offload_activations",), reason, "Set offload_activations to false.", {"offload_activations": False}
    )


@rule
def a_step_in_backward_sees_one_gradient(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if not config.steps_in_backward:
        return
    if config.max_grad_norm:
        yield Conflict(
            ("optimizer_in_backward", "max_grad_norm"),
            "Clipping needs the norm of the whole gradient, and optimizer_in_backward frees each part at once.",
            "Set max_grad_norm to 0, or optimizer_in_backward to false.",
            {"max_grad_norm": 0.0},
        )
    off = {"optimizer_in_backward": False}
    precision = machine.precision_of(config.precision)
    for name, holds, reason in (
        (
            "gradient_accumulation_steps",
            config.gradient_accumulation_steps > 1,
            "Accumulation adds gradients up over several backward passes, and optimizer_in_backward steps in each",
        ),
        (
            "strategy",
            config.strategy is not Strategy.SINGLE,
            f"{config.strategy.value} exchanges gradients between devices before the step",
        ),
        (
            "precision",
            precision is Precision.FP16,
            "fp16's loss scale is checked on the whole gradient before the step",
        ),
        (
            "optimizer",
            config.optimizer.traits.paged,
            "a paged optimizer waits for the GPU in each step, here once per weight",
        ),
    ):
        if holds:
            yield Conflict(
                ("optimizer_in_backward", name),
                f"optimizer_in_backward does not go with {name}: {reason}.",
                "Set optimizer_in_backward to false.",
                off,
            )


LEAST_VOCABULARY = 32_000
"""`auto` leaves smaller vocabularies to the model's own loss, whose logits take little memory."""
CHUNK_ELEMENTS = 2**25
"""Logits of a chunk: 128 MiB in fp32. A chunk of some hundred tokens keeps the matrix products efficient."""
_MULTIPLE, _LEAST = 64, 64


def chunk_tokens(vocabulary: int) -> int:
    """The number of tokens whose logits are in memory at once."""
    return max(_LEAST, CHUNK_ELEMENTS // vocabulary // _MULTIPLE * _MULTIPLE)


def cannot_chunk(config: RunConfig) -> tuple[str, str]:
    """The setting that excludes a chunked loss, and the reason; both are empty if none does."""
    if config.torch_compile:
        return "torch_compile", "the compiled model computes its own loss"
    if config.sequence_parallel_size > 1:
        return "sequence_parallel_size", "DeepSpeed computes the loss of each part of a row itself"
    if config.method is Method.ADALORA:
        return "method", "adalora adds the distance of its matrices from orthogonal ones to the model's own loss"
    if config.method.adapts and targets_head(config.target_modules):
        return "target_modules", "the adapter on the head computes logits with matrices of its own"
    method = method_of(config.method)
    if method and method.prompts:
        return "method", f"{config.method.value} puts virtual tokens before each row"
    return "", ""


def wants_chunks(config: RunConfig, vocabulary: int) -> bool:
    """True if the run computes its loss in chunks, provided that its model's head is a plain linear module."""
    if not config.task.traits.chunks_loss or config.chunked_loss is ChunkedLoss.OFF or cannot_chunk(config)[0]:
        return False
    return config.chunked_loss is ChunkedLoss.ON or vocabulary >= LEAST_VOCABULARY


def cannot_probe(config: RunConfig) -> tuple[str, str]:
    """The setting that excludes a probe and the reason; both are empty if a probe is possible."""
    if config.streaming:
        return "streaming", "the longest rows of a stream are not known in advance"
    if config.sequence_parallel_size > 1:
        return "sequence_parallel_size", "the data loader splits the sequences, and the probe does not use it"
    if Offload.NVME in (config.offload_optimizer, config.offload_param):
        return "offload_optimizer", "optimizer state on a disk cannot be restored"
    return "", ""


def wants_probe(config: RunConfig, device: str) -> bool:
    """True if a run on `device` (cuda or another type) starts with a probe."""
    wanted = config.probe is Probe.ON or (config.probe is Probe.AUTO and device == "cuda")
    return wanted and not cannot_probe(config)[0]


@rule
def a_probe_must_be_undone(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    name, reason = cannot_probe(config)
    if config.probe is Probe.ON and name:
        yield Conflict(
            ("probe", name),
            f"This run cannot be probed: {reason}.",
            "Set probe to auto or off.",
            {"probe": "auto"},
        )
