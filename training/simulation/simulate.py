"""Simulates the memory of a training step: `python -m training.simulation.simulate --request FILE` prints it as JSON.

It builds the model's real class from its config.json, adds the method's adapter, and replaces the parameters by fake tensors.
It runs two steps on a batch of given lengths, since the optimizer allocates its state in the first.
"""

import argparse
import json
import sys
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter

from training.batches.padding_free import base_of
from training.config.choices import Precision
from training.errors import UserError
from training.models.attention import attend_without_groups
from training.simulation.batches import Request, collator, rows_of
from training.simulation.caching_allocator import least_limit, replay
from training.simulation.fake_model import (
    RealIntegers,
    fake_mode,
    head_names,
    make_fake,
    meta_reference,
    meta_trainable,
)
from training.simulation.preference import needs_reference
from training.simulation.steps import kernels, recompute, run_steps
from training.simulation.strategies.choose import ranks_differ
from training.simulation.strategies.strategy import shards
from training.simulation.timeline import Point, Timeline

POINTS = 300
"""The approximate number of points in the printed timeline, which always contains the peak."""


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
        ranks = (False, True) if ranks_differ(request.config) else (False,)
        found = [summary(recorded_steps(request, last=last), request) for last in ranks]
        return max(found, key=lambda one: one.needed_bytes)


def recorded_steps(request: Request, *, last: bool = False) -> Timeline:
    """Returns the live memory of one device, of the `last` rank or of the fullest, after each operation of the steps."""
    config = request.config
    if needs_reference(config) and shards(config):
        fix = "Use the forecast, which is computed from config.json."
        raise UserError("task", config.task.value, "cannot be simulated with a sharded reference model.", fix)
    model = meta_trainable(config, request.precision, request.tokenizer_size, [str(n) for n in range(request.classes)])
    reference = meta_reference(config, request.precision, request.tokenizer_size) if needs_reference(config) else None
    if request.device == "cuda" and (not request.flash or request.precision is Precision.FP32):
        for one in (model, reference):
            if one is not None:
                attend_without_groups(base_of(one), config)
    recompute(model, config)
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
            run_steps(model, reference, lambda place: collate(rows_of(config, place)), request, live, last=last)
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
