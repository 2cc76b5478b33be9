"""Rules on the settings that save memory at the same loss: the loss in chunks, offloaded activations, the optimizer in backward."""

from collections.abc import Iterator

from training.config.choices import Checkpointing, ChunkedLoss, Precision, Strategy
from training.config.chunked_loss import TASKS, cannot_chunk
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.rules.conflict import Conflict, rule


@rule
def some_runs_cannot_chunk_their_loss(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    name, reason = cannot_chunk(config)
    if config.chunked_loss is ChunkedLoss.ON and config.task in TASKS and name:
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
    precision = machine.best_precision if config.precision is Precision.AUTO else config.precision
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
        ("optimizer", config.optimizer.paged, "a paged optimizer waits for the GPU in each step, here once per weight"),
    ):
        if holds:
            yield Conflict(
                ("optimizer_in_backward", name),
                f"optimizer_in_backward does not go with {name}: {reason}.",
                "Set optimizer_in_backward to false.",
                off,
            )
