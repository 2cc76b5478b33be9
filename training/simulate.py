"""The memory of a training step, found without memory: `python -m training.simulate --request FILE` prints it as JSON.

The model's real class is built from its config.json alone, the method's adapter put on it, and fake tensors take the place of
its parameters. Two steps run on a batch of given lengths: two, since the optimizer's state appears in the first.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from accelerate.utils.operations import convert_outputs_to_fp32
from pydantic import TypeAdapter

from training.checkpointing import keeping, spare_every_second_layer
from training.config import Checkpointing, Precision, RunConfig, Strategy, Task
from training.cuda_kernels import cuda_kernels, kept_on_host
from training.data import IGNORED, Tokens
from training.failure import UserError
from training.fake_model import RealIntegers, fake_mode, head_names, make_fake, meta_trainable
from training.fake_optimizer import fake_optimizer
from training.layout import PLAIN, lay_out
from training.live_timeline import Point, Timeline
from training.model import DTYPES
from training.objectives import objective
from training.shared_fsdp import Fsdp
from training.shared_memory import Sharing, Whole, shards
from training.shared_zero import Zero, Zero3
from training.zero import deepspeed_config

POINTS = 300
"""Points of the timeline that is printed; the peak is one of them."""


_SIMULATED = (*PLAIN, Task.SEQ2SEQ, Task.CLASSIFICATION)


@dataclass(frozen=True)
class Request:
    """A run, and the batch of one device: tokens of each row, of its target (seq2seq) and those of them that carry loss."""

    config: RunConfig
    lengths: list[int]
    targets: list[int] = field(default_factory=list)
    labelled: list[int] = field(default_factory=list)
    device: Literal["cuda", "cpu"] = "cuda"
    precision: Precision = Precision.BF16
    tokenizer_size: int = 0
    classes: int = 0


@dataclass(frozen=True)
class Simulation:
    """Bytes of one device: the peak, what it is made of, and the live memory over the last step."""

    peak_bytes: int
    parts: dict[str, int]
    phase: str
    operator: str
    module: str
    line: str
    function: str
    timeline: list[dict[str, Any]]


def simulate(request: Request) -> Simulation:
    """Two training steps on fake tensors.

    Raises:
        UserError: as `meta_trainable`; or the task has a loss that is not the model's own.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the libraries', about a model that nobody will use
        return summary(step_points(request))


def step_points(request: Request) -> list[Point]:
    """Live memory after each operation of the two steps, on one device that shares with no other."""
    config = request.config
    if config.task not in _SIMULATED:
        fix = "Go by the forecast, which is worked out from config.json."
        raise UserError("task", config.task.value, "has a loss of its trainer's, and is not simulated.", fix)
    model = meta_trainable(config, request.precision, request.tokenizer_size, [str(n) for n in range(request.classes)])
    _recompute(model, config)
    collate, rows = batches(model, request)
    model.train()
    with fake_mode(), RealIntegers():  # type: ignore[no-untyped-call]
        make_fake(model)
        with Timeline(model, head_names(model)) as live, kernels(request):
            if shards(config):
                live.ignore(model)
            _steps(model, lambda: collate(rows), request, live)
    return live.points


def summary(points: list[Point]) -> Simulation:
    """The peak and the timeline of the points."""
    highest = max(points, key=lambda point: point.total)
    place = highest.place
    step = _step_of(points, highest)
    every = max(1, len(step) // POINTS)
    kept = [point for number, point in enumerate(step) if number % every == 0 or point is highest]
    timeline = [{"phase": one.phase, "module": one.place.module, "bytes": one.bytes} for one in kept]
    return Simulation(
        highest.total,
        highest.bytes,
        highest.phase,
        highest.operator,
        place.module,
        place.line,
        place.function,
        timeline,
    )


def _step_of(points: list[Point], one: Point) -> list[Point]:
    """The points of the step that a point belongs to; each step begins by loading its batch."""
    place = next(number for number, point in enumerate(points) if point is one)
    begins = [0] + [n for n in range(1, len(points)) if points[n].phase == "load" != points[n - 1].phase]
    first = max(number for number in begins if number <= place)
    return points[first : min((number for number in begins if number > place), default=len(points))]


def _short(line: str) -> str:
    """A line of an installed package, from the package on."""
    return line.rpartition("-packages/")[2]


def batches(model: torch.nn.Module, request: Request) -> tuple[Any, list[Any]]:
    """The collator of the run, and the rows of the batch as it takes them."""
    config, pad = request.config, 0
    if config.task in PLAIN:
        collate: Any = lay_out(config, model, pad, on_cpu=request.device == "cpu").collator
    else:
        collate = objective(config).collator(pad)
    labelled = request.labelled or request.lengths
    targets = request.targets or request.lengths
    if config.task is Task.SEQ2SEQ:
        return collate, [
            {"input_ids": _tokens(length), "labels": _tokens(target)}
            for length, target in zip(request.lengths, targets, strict=True)
        ]
    rows = [_row(length, count) for length, count in zip(request.lengths, labelled, strict=True)]
    if config.task is Task.CLASSIFICATION:
        return collate, [row | {"label": 0} for row in rows]
    return collate, rows


def _row(length: int, labelled: int) -> Tokens:
    tokens = _tokens(length)
    return {"input_ids": tokens, "labels": np.where(np.arange(length) < length - labelled, np.int32(IGNORED), tokens)}


def _tokens(count: int) -> Any:
    return np.ones(count, dtype=np.int32)


def _recompute(model: Any, config: RunConfig) -> None:
    if config.recomputes:
        name = (
            "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"
        )  # before transformers 5.20
        enable = getattr(model, f"{name}_checkpointing_enable")
        enable(**{f"{name}_checkpointing_kwargs": {"use_reentrant": False}})
    if config.gradient_checkpointing is Checkpointing.SELECTIVE:
        spare_every_second_layer(model)


@contextmanager
def kernels(request: Request) -> Iterator[None]:
    """What the device's kernels keep, where it is not what those of a CPU do."""
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
    shared = sharing(model, config, request.precision, live, hidden, on_cpu=request.device == "cpu")
    live.watch(shared.enter)
    for one in model.parameters():
        if one.requires_grad:
            one.register_post_accumulate_grad_hook(shared.accumulated)
    made = fake_optimizer(model, shared.parameters, config, live)
    for _ in range(3 if config.num_processes > 1 else 2):
        one_step(forward, batch, shared, made, request, live)


def one_step(forward: Any, batch: Any, shared: Any, made: Any, request: Request, live: Timeline) -> None:
    """Forward and backward passes, clipping and the optimizer's step, as the Trainer makes them."""
    config = request.config
    live.phase, live.kind = "load", "other"
    micro = [batch() for _ in range(min(2, config.gradient_accumulation_steps) + 1)]  # and one that is read ahead
    for inputs in micro[:-1]:
        live.phase = "forward"
        with _keeping(request):
            loss = forward(**inputs)[0]
        live.phase = "backward"
        loss.backward()
        del loss
        shared.backward_ends()
    live.phase, live.kind = "optimizer", "other"
    shared.step_begins()
    if config.max_grad_norm:
        torch.nn.utils.clip_grad_norm_(shared.parameters, config.max_grad_norm)
    live.kind = "optimizer"
    made.step()
    shared.step_ends()


def sharing(
    model: Any, config: RunConfig, precision: Precision, live: Timeline, hidden_size: int, *, on_cpu: bool
) -> Sharing:
    """How the strategy shares out the model."""
    trained = [one for one in model.parameters() if one.requires_grad]
    ranks, stage = config.num_processes, config.strategy.zero_stage
    if stage is not None:
        settings = (deepspeed_config(config, hidden_size, precision) or {})["zero_optimization"]
        if stage == 3:
            return Zero3(model, trained, live, ranks, settings)
        return Zero(model, trained, live, ranks if stage else 1, settings)
    if config.strategy is Strategy.FSDP and ranks > 1:
        return Fsdp(model, trained, live, config, precision, on_cpu=on_cpu)
    return Whole(model, trained, live, ranks)


def _keeping(request: Request) -> AbstractContextManager[object]:
    kind = request.config.gradient_checkpointing
    if kind is Checkpointing.OFFLOADED and request.device == "cuda":
        return kept_on_host()
    return keeping(kind, torch.device("cpu"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the memory of a run's training step, as JSON.")
    parser.add_argument("--request", type=Path, required=True, help="The request as JSON; - reads it.")
    given = parser.parse_args().request
    text = sys.stdin.read() if str(given) == "-" else given.read_text(encoding="utf-8")
    try:
        found = asdict(simulate(TypeAdapter(Request).validate_json(text)))
    except UserError as error:
        message = str(error).removeprefix(f"{error.field} (given: {error.value!r}) ")
        found = {"problem": {"field": error.field, "value": error.value, "message": message, "fix": error.fix}}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
