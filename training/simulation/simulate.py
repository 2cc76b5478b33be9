"""Simulates the memory of a training step: `python -m training.simulation.simulate --request FILE` prints it as JSON.

It builds the model's real class from its config.json, adds the method's adapter, and replaces the parameters by fake tensors.
It runs two steps on a batch of given lengths, since the optimizer allocates its state in the first.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from accelerate.utils.operations import convert_outputs_to_fp32
from pydantic import TypeAdapter
from transformers import AutoConfig

from training.batches.layout import PLAIN, choose_layout
from training.batches.padding_free import base_of
from training.batches.views import IGNORED, Tokens
from training.config.choices import Checkpointing, Precision, Quantization, Strategy, Task
from training.config.chunked_loss import TASKS, wants_chunks
from training.config.run_config import RunConfig
from training.config.sharding import deepspeed_config
from training.errors import UserError
from training.model_info.flat_batches import why_padded
from training.models.activation_checkpointing import checkpoint_every_second_layer, saved_activations
from training.models.loading import DTYPES
from training.simulation.caching_allocator import least_limit, replay
from training.simulation.cuda_kernels import cuda_kernels, saved_on_host
from training.simulation.ddp import Unsharded
from training.simulation.fake_model import (
    RealIntegers,
    fake_mode,
    head_names,
    make_fake,
    meta_reference,
    meta_trainable,
)
from training.simulation.fake_optimizer import fake_optimizer
from training.simulation.fsdp import Fsdp
from training.simulation.preference import head_on_cuda, needs_reference, preference_loss, prepare_preference
from training.simulation.strategy import SimulatedStrategy, Weights, elements, shards
from training.simulation.timeline import Point, Timeline
from training.simulation.zero import Zero
from training.trainer.chunked_loss import ChunkedHead, linear_head
from training.trainer.global_batch import evaluating
from training.trainer.objectives import objective

POINTS = 300
"""The approximate number of points in the printed timeline, which always contains the peak."""


_TEST_TOKENS = 16


@dataclass(frozen=True)
class PlacedBatch:
    """The batch of the first step or of later ones, and of their first micro steps or of later ones."""

    first_step: bool
    first_micro: bool
    lengths: list[int]
    targets: list[int] = field(default_factory=list)
    labeled: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Request:
    """A run, and the batch of one device: per row its tokens, its target's tokens (seq2seq) and its tokens with loss.

    `places`, if there are any, are the batches of all micro steps; without one for later steps there is only one.
    """

    config: RunConfig
    lengths: list[int]
    targets: list[int] = field(default_factory=list)
    labeled: list[int] = field(default_factory=list)
    places: list[PlacedBatch] = field(default_factory=list)
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
        UserError: as `meta_trainable`; or the task's reference model is sharded.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the libraries warn about a model that is never used
        return summary(recorded_steps(request), request)


def recorded_steps(request: Request) -> Timeline:
    """Returns the live memory of one device after each operation of the steps."""
    config = request.config
    if needs_reference(config) and shards(config):
        fix = "Use the forecast, which is computed from config.json."
        raise UserError("task", config.task.value, "cannot be simulated with a sharded reference model.", fix)
    model = meta_trainable(config, request.precision, request.tokenizer_size, [str(n) for n in range(request.classes)])
    reference = meta_reference(config, request.precision, request.tokenizer_size) if needs_reference(config) else None
    _recompute(model, config)
    collate = collator(model, request)
    model.train()
    with fake_mode(), RealIntegers():  # type: ignore[no-untyped-call]
        make_fake(model)
        if reference is not None:
            make_fake(reference)
        with Timeline(model, head_names(model)) as live, kernels(request):
            if shards(config):
                live.ignore(model)
            if reference is not None:
                live.hold(reference, "weights")
            workspaces = live.allocate("other", request.workspace_bytes, torch.uint8)
            _steps(model, reference, lambda place: collate(rows_of(config, place)), request, live)
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


def collator(model: torch.nn.Module, request: Request) -> Any:
    """Returns the collator of the run."""
    config, pad = request.config, 0
    if config.task not in PLAIN:
        return objective(config).collator(pad)
    chosen: Any = choose_layout(config, model, pad, on_cpu=request.device == "cpu").collator
    if why_padded(base_of(model).config.model_type):  # a run finds that out by trying
        chosen.pad()
    return chosen


def rows_of(config: RunConfig, batch: Request | PlacedBatch) -> list[Any]:
    """Returns the rows of a batch."""
    labeled = batch.labeled or batch.lengths
    targets = batch.targets or batch.lengths
    if config.task is Task.SEQ2SEQ:
        return [
            {"input_ids": _tokens(length), "labels": _tokens(target)}
            for length, target in zip(batch.lengths, targets, strict=True)
        ]
    rows = [_row(length, count) for length, count in zip(batch.lengths, labeled, strict=True)]
    if config.task is Task.CLASSIFICATION:
        return [row | {"label": 0} for row in rows]
    if config.task.pairs:
        return [{"chosen": row, "rejected": row} for row in rows]
    if config.task is Task.KTO:
        return [row | {"whole": row["input_ids"], "label": number % 2} for number, row in enumerate(rows)]
    return rows


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
    """Applies the kernels of the request's device and strategy."""
    with ExitStack() as stack:
        if request.config.strategy is Strategy.ZERO3:
            from training.simulation.zero3 import linear_layers  # DeepSpeed takes seconds to import

            stack.enter_context(linear_layers())
        if request.device == "cuda":
            stack.enter_context(cuda_kernels())
            if request.config.task in (Task.DPO, Task.KTO):
                stack.enter_context(head_on_cuda())
        yield


def _steps(model: Any, reference: Any, batch: Any, request: Request, live: Timeline) -> None:
    config = request.config
    both = [one for one in (model, reference) if one is not None]
    if config.task not in (*PLAIN, Task.SEQ2SEQ, Task.CLASSIFICATION):
        prepare_preference(config, *both)
    if request.precision is not Precision.FP32 and config.strategy.zero_stage is None:
        cast = torch.autocast("cpu", dtype=DTYPES[request.precision])
        for one in both:
            one.forward = convert_outputs_to_fp32(cast(one.forward))
    hidden = model.config.get_text_config().hidden_size
    strategy = simulated_strategy(model, config, request.precision, live, hidden, on_cpu=request.device == "cpu")
    live.on_enter(strategy.enter)
    if config.strategy is Strategy.ZERO3 and config.task in PLAIN:
        _test(model, batch)
    compute_loss = _loss(model, reference, request)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(strategy.on_gradient)
    optimizer = fake_optimizer(model, strategy.parameters, config, live)
    if config.steps_in_backward:
        _free_gradients(optimizer, strategy.parameters, live)
    for step in range(3 if config.num_processes > 1 else 2):
        if placed := _placed(request, first_step=step == 0):
            one_step(compute_loss, [partial(batch, one) for one in placed], strategy, optimizer, request, live)


def _test(model: Any, batch: Any) -> None:
    """Runs forward passes on a short batch, as a run does before its first step; DeepSpeed's first trace is that of these."""
    with evaluating(model):
        for _ in range(2):
            model(**batch(PlacedBatch(True, True, [_TEST_TOKENS, _TEST_TOKENS])))


def _placed(request: Request, *, first_step: bool) -> list[Request | PlacedBatch]:
    """Returns the batches of a step's micro steps: the first and, if gradients accumulate, a later one."""
    number = _micro_steps(request.config)
    if not request.places:
        return [request] * number
    found: list[Request | PlacedBatch] = [one for one in request.places if one.first_step is first_step]
    return sorted(found, key=lambda one: not getattr(one, "first_micro", False))[:number]


def _micro_steps(config: RunConfig) -> int:
    return min(2, config.gradient_accumulation_steps)


def _loss(model: Any, reference: Any, request: Request) -> Callable[[dict[str, Any]], torch.Tensor]:
    """Returns the function that computes the loss of a batch: in chunks where the run does."""
    forward = model.__call__
    if request.config.task not in (*PLAIN, Task.SEQ2SEQ, Task.CLASSIFICATION):
        return preference_loss(request.config, model, reference)
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


def one_step(compute_loss: Any, batches: Any, strategy: Any, optimizer: Any, request: Request, live: Timeline) -> None:
    """Runs forward and backward passes, gradient clipping and the optimizer's step, as the Trainer does."""
    config = request.config
    live.phase, live.kind = "load", "other"
    micro_batches = [batch() for batch in (*batches, batches[-1])]  # one is read ahead
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
            files = _file_bytes(model, config) if on_cpu and config.quantized is Quantization.NONE else 0
            from training.simulation.zero3 import Zero3

            return Zero3(model, trained, live, ranks, settings, files, recomputes=config.recomputes)
        return Zero(model, trained, live, ranks if stage else 1, settings, _micro_steps(config))
    if config.strategy is Strategy.FSDP and ranks > 1:
        return Fsdp(model, trained, live, config, precision, on_cpu=on_cpu)
    return Unsharded(model, trained, live, ranks)


def _file_bytes(model: Any, config: RunConfig) -> int:
    """Bytes of the model's files, which have the format of its config.json; an adapter's weights are not in them."""
    stored = AutoConfig.from_pretrained(config.model, revision=config.revision or "main").dtype or torch.float32
    loaded = [weight for weight in model.parameters() if not (config.method.adapts and weight.requires_grad)]
    return elements(loaded) * stored.itemsize


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
