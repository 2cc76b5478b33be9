"""Simulates the memory of a training step: `python -m training.simulation.simulate --request FILE` prints it as JSON.

It builds the model's real class from its config.json, adds the method's adapter, and replaces the parameters by fake tensors.
It runs two steps on a batch of given lengths, since the optimizer allocates its state in the first.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from accelerate.utils.operations import convert_outputs_to_fp32
from pydantic import TypeAdapter

from training.batches.layout import PLAIN, choose_layout
from training.batches.views import IGNORED, Tokens
from training.config.choices import Checkpointing, Precision, Strategy, Task
from training.config.chunked_loss import TASKS, wants_chunks
from training.config.run_config import RunConfig
from training.config.sharding import deepspeed_config
from training.errors import UserError
from training.models.activation_checkpointing import checkpoint_every_second_layer, saved_activations
from training.models.loading import DTYPES
from training.simulation.caching_allocator import least_limit, replay
from training.simulation.cuda_kernels import cuda_kernels, saved_on_host
from training.simulation.ddp import Unsharded
from training.simulation.fake_model import RealIntegers, fake_mode, head_names, make_fake, meta_trainable
from training.simulation.fake_optimizer import fake_optimizer
from training.simulation.fsdp import Fsdp
from training.simulation.strategy import SimulatedStrategy, Weights, shards
from training.simulation.timeline import Point, Timeline
from training.simulation.zero import Zero, Zero3
from training.trainer.chunked_loss import ChunkedHead, linear_head
from training.trainer.objectives import objective

POINTS = 300
"""The approximate number of points in the printed timeline, which always contains the peak."""

_SIMULATED = (*PLAIN, Task.SEQ2SEQ, Task.CLASSIFICATION)


@dataclass(frozen=True)
class Request:
    """A run, and the batch of one device: per row its tokens, its target's tokens (seq2seq) and its tokens with loss."""

    config: RunConfig
    lengths: list[int]
    targets: list[int] = field(default_factory=list)
    labeled: list[int] = field(default_factory=list)
    device: Literal["cuda", "cpu"] = "cuda"
    precision: Precision = Precision.BF16
    tokenizer_size: int = 0
    classes: int = 0
    workspace_bytes: int = 0
    """cuBLAS's workspaces on the card (training/forecast/card_share.py)."""
    expandable_segments: bool = False


@dataclass(frozen=True)
class Simulation:
    """Memory of one device in bytes: the peak, its parts and place, and the live memory over the step of the peak.

    On a GPU `reserved_bytes` is the peak of the memory that torch's allocator reserves, `needed_bytes` the least with which the
    steps succeed: when the GPU is full, the allocator gives back what it does not use. On CPU both equal the peak.
    """

    peak_bytes: int
    reserved_bytes: int
    needed_bytes: int
    parts: dict[str, int]
    phase: str
    operator: str
    module: str
    line: str
    function: str
    timeline: list[dict[str, Any]]


def simulate(request: Request) -> Simulation:
    """Runs two training steps on fake tensors.

    Raises:
        UserError: as `meta_trainable`; or the loss of the task is not computed by the model.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the libraries warn about a model that is never used
        return summary(recorded_steps(request), request)


def recorded_steps(request: Request) -> Timeline:
    """Returns the live memory of one device after each operation of the steps."""
    config = request.config
    if config.task not in _SIMULATED:
        fix = "Use the forecast, which is computed from config.json."
        raise UserError("task", config.task.value, "cannot be simulated: its trainer computes the loss.", fix)
    model = meta_trainable(config, request.precision, request.tokenizer_size, [str(n) for n in range(request.classes)])
    _recompute(model, config)
    collate, rows = batches(model, request)
    model.train()
    with fake_mode(), RealIntegers():  # type: ignore[no-untyped-call]
        make_fake(model)
        with Timeline(model, head_names(model)) as live, kernels(request):
            if shards(config):
                live.ignore(model)
            workspaces = live.allocate("other", request.workspace_bytes, torch.uint8)
            _steps(model, lambda: collate(rows), request, live)
            del workspaces
    return live


def summary(live: Timeline, request: Request) -> Simulation:
    """Returns the peak, the memory that the allocator reserves for it, and the timeline of its step."""
    points = live.points
    highest = max(points, key=lambda point: point.total)
    place = highest.place
    step = _step_of(points, highest)
    every = max(1, len(step) // POINTS)
    sampled = [point for number, point in enumerate(step) if number % every == 0 or point is highest]
    timeline = [{"phase": point.phase, "module": point.place.module, "bytes": point.bytes} for point in sampled]
    reserved = needed = highest.total
    if request.device == "cuda":
        reserved = replay(live.events, expandable_segments=request.expandable_segments).reserved_bytes
        needed = least_limit(live.events, expandable_segments=request.expandable_segments)
    return Simulation(
        highest.total,
        reserved,
        needed,
        highest.bytes,
        highest.phase,
        highest.operator,
        place.module,
        place.line,
        place.function,
        timeline,
    )


def _step_of(points: list[Point], peak: Point) -> list[Point]:
    """Returns the points of the step of `peak`; each step begins with the phase load."""
    place = next(number for number, point in enumerate(points) if point is peak)
    starts = [0] + [n for n in range(1, len(points)) if points[n].phase == "load" != points[n - 1].phase]
    first = max(number for number in starts if number <= place)
    return points[first : min((number for number in starts if number > place), default=len(points))]


def batches(model: torch.nn.Module, request: Request) -> tuple[Any, list[Any]]:
    """Returns the collator of the run, and the rows of the batch."""
    config, pad = request.config, 0
    if config.task in PLAIN:
        collate: Any = choose_layout(config, model, pad, on_cpu=request.device == "cpu").collator
    else:
        collate = objective(config).collator(pad)
    labeled = request.labeled or request.lengths
    targets = request.targets or request.lengths
    if config.task is Task.SEQ2SEQ:
        return collate, [
            {"input_ids": _tokens(length), "labels": _tokens(target)}
            for length, target in zip(request.lengths, targets, strict=True)
        ]
    rows = [_row(length, count) for length, count in zip(request.lengths, labeled, strict=True)]
    if config.task is Task.CLASSIFICATION:
        return collate, [row | {"label": 0} for row in rows]
    return collate, rows


def _row(length: int, labeled: int) -> Tokens:
    tokens = _tokens(length)
    return {"input_ids": tokens, "labels": np.where(np.arange(length) < length - labeled, np.int32(IGNORED), tokens)}


def _tokens(count: int) -> Any:
    return np.ones(count, dtype=np.int32)


def _recompute(model: Any, config: RunConfig) -> None:
    if config.recomputes:
        # "gradient" before transformers 5.20
        name = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"
        enable = getattr(model, f"{name}_checkpointing_enable")
        enable(**{f"{name}_checkpointing_kwargs": {"use_reentrant": False}})
    if config.gradient_checkpointing is Checkpointing.SELECTIVE:
        checkpoint_every_second_layer(model)


@contextmanager
def kernels(request: Request) -> Iterator[None]:
    """Applies `cuda_kernels` if the request's device is a GPU."""
    if request.device == "cpu":
        yield
    else:
        with cuda_kernels():
            yield


def _steps(model: Any, batch: Any, request: Request, live: Timeline) -> None:
    config = request.config
    forward = model.__call__
    if request.precision is not Precision.FP32 and config.strategy.zero_stage is None:
        cast = torch.autocast("cpu", dtype=DTYPES[request.precision])
        model.forward = convert_outputs_to_fp32(cast(model.forward))
    hidden = model.config.get_text_config().hidden_size
    strategy = simulated_strategy(model, config, request.precision, live, hidden, on_cpu=request.device == "cpu")
    live.on_enter(strategy.enter)
    compute_loss = _loss(model, forward, request)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(strategy.on_gradient)
    optimizer = fake_optimizer(model, strategy.parameters, config, live)
    if config.steps_in_backward:
        _free_gradients(optimizer, strategy.parameters, live)
    for _ in range(3 if config.num_processes > 1 else 2):
        one_step(compute_loss, batch, strategy, optimizer, request, live)


def _loss(model: Any, forward: Any, request: Request) -> Callable[[dict[str, Any]], torch.Tensor]:
    """Returns the function that computes the loss of a batch: in chunks where the run does."""
    head = linear_head(model) if request.config.task in TASKS else None
    if head is None or not wants_chunks(request.config, head.out_features):
        return lambda inputs: forward(**inputs)[0]
    chunked = ChunkedHead(model)
    chunked.place()
    return lambda inputs: chunked.outputs(forward, inputs)["logits"] / len(request.lengths)


def _free_gradients(optimizer: Any, weights: Weights, live: Timeline) -> None:
    """Takes the optimizer's step for each weight in the backward pass (training/trainer/step_in_backward.py)."""

    def step(weight: torch.Tensor) -> None:
        live.phase, live.kind = "optimizer", "optimizer"
        optimizer.step()
        weight.grad, live.phase = None, "backward"

    for weight in weights:
        weight.register_post_accumulate_grad_hook(step)  # type: ignore[no-untyped-call]


def one_step(compute_loss: Any, batch: Any, strategy: Any, optimizer: Any, request: Request, live: Timeline) -> None:
    """Runs forward and backward passes, gradient clipping and the optimizer's step, as the Trainer does."""
    config = request.config
    live.phase, live.kind = "load", "other"
    micro_batches = [batch() for _ in range(min(2, config.gradient_accumulation_steps) + 1)]  # one is read ahead
    for inputs in micro_batches[:-1]:
        live.phase = "forward"
        with _saved_activations(request, strategy.parameters if request.config.offload_activations else ()):
            loss = compute_loss(inputs)
        live.phase = "backward"
        loss.backward()
        del loss
        strategy.on_backward_end()
    live.phase, live.kind = "optimizer", "other"
    strategy.on_step_begin()
    if config.max_grad_norm:
        torch.nn.utils.clip_grad_norm_(strategy.parameters, config.max_grad_norm)
    live.kind = "optimizer"
    optimizer.step()
    strategy.on_step_end()


def simulated_strategy(
    model: Any, config: RunConfig, precision: Precision, live: Timeline, hidden_size: int, *, on_cpu: bool
) -> SimulatedStrategy:
    """Returns the simulation of the strategy's part of a rank's memory."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    ranks, stage = config.num_processes, config.strategy.zero_stage
    if stage is not None:
        settings = (deepspeed_config(config, hidden_size, precision) or {})["zero_optimization"]
        if stage == 3:
            return Zero3(model, trained, live, ranks, settings)
        return Zero(model, trained, live, ranks if stage else 1, settings)
    if config.strategy is Strategy.FSDP and ranks > 1:
        return Fsdp(model, trained, live, config, precision, on_cpu=on_cpu)
    return Unsharded(model, trained, live, ranks)


def _saved_activations(request: Request, weights: Iterable[torch.Tensor]) -> AbstractContextManager[object]:
    kind = request.config.gradient_checkpointing
    if request.config.offload_activations and request.device == "cuda":
        return saved_on_host(weights)
    if kind is Checkpointing.OFFLOADED and request.device == "cuda":
        return saved_on_host()
    return saved_activations(kind, torch.device("cpu"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the memory of a run's training step, as JSON.")
    parser.add_argument("--request", type=Path, required=True, help="The request as JSON; - for stdin.")
    path = parser.parse_args().request
    text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    try:
        answer = asdict(simulate(TypeAdapter(Request).validate_json(text)))
    except UserError as error:
        answer = {"problem": vars(error.problem)}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
