"""Simulates the memory of a training step: `python -m training.simulation.simulate` reads a `Request` and prints a `Simulation`.
With `--largest` it reads a `Search` and prints the largest value of a setting with which a step fits. All of it is JSON.

It builds the model's real class from its config.json, adds the method's adapter, and replaces the parameters by fake tensors.
It runs two steps on a batch of given lengths, since the optimizer allocates its state in the first.
"""

import sys
import warnings
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from pydantic import TypeAdapter
from torch._subclasses.fake_tensor import FakeTensorMode

from training.batches.layout import base_of
from training.config.choices import Precision, Wanted
from training.config.run_config import RunConfig
from training.errors import UserError, answer_json
from training.forecast.solve import border, changes_for
from training.models.attention import attend_without_groups
from training.simulation.batches import SimulationRequest, collator, rows_of
from training.simulation.caching_allocator import least_limit, replay
from training.simulation.fake_model import (
    RealIntegers,
    head_names,
    make_fake,
    meta_reference,
    meta_trainable,
)
from training.simulation.steps import kernels, ranks_differ, recompute, run_steps
from training.simulation.strategies import shards
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


def simulate(request: SimulationRequest) -> Simulation:
    """Runs two training steps on fake tensors. Raises UserError as `meta_trainable`, and if the task's reference
    model is sharded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the libraries warn about a model that is never used
        ranks = (False, True) if ranks_differ(request.config) else (False,)
        simulations = [summary(recorded_steps(request, last=last), request) for last in ranks]
        return max(simulations, key=lambda simulation: simulation.needed_bytes)


def recorded_steps(request: SimulationRequest, *, last: bool = False) -> Timeline:
    """Returns the live memory of one device, of the `last` rank or of the fullest, after each operation of the steps."""
    config = request.config
    if config.loads_reference and shards(config):
        fix = "Use the forecast, which is computed from config.json."
        raise UserError("task", config.task.value, "cannot be simulated with a sharded reference model.", fix)
    if config.task.traits.samples and shards(config):
        fix = "Use the forecast, which is computed from config.json."
        raise UserError("task", config.task.value, "cannot be simulated with sharded weights.", fix)
    model = meta_trainable(config, request.precision, request.tokenizer_size, [str(n) for n in range(request.classes)])
    reference = meta_reference(config, request.precision, request.tokenizer_size) if config.loads_reference else None
    if request.device == "cuda" and (not request.flash or request.precision is Precision.FP32):
        for one in (model, reference):
            if one is not None:
                attend_without_groups(base_of(one), config)
    recompute(model, config)
    collate = collator(model, request)
    model.train()
    with FakeTensorMode(allow_non_fake_inputs=True), RealIntegers():  # type: ignore[no-untyped-call]
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


def summary(live: Timeline, request: SimulationRequest) -> Simulation:
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
        highest.total, reserved, needed, highest.bytes, highest.phase, highest.operator,
        place.module, place.line, place.function, timeline,
    )  # fmt: skip


def _step_of(points: list[Point], peak: Point) -> list[Point]:
    place = next(number for number, point in enumerate(points) if point is peak)
    starts = [0] + [n for n in range(1, len(points)) if points[n].phase == "load" != points[n - 1].phase]
    first = max(number for number in starts if number <= place)
    return points[first : min((number for number in starts if number > place), default=len(points))]


@dataclass(frozen=True)
class Search:
    """Where to look for the largest value of a setting with which a step fits: the setting `wanted`, a first `guess`, the `step`
    between two values, the most that makes sense, and the bytes that a step may take."""

    request: SimulationRequest
    wanted: Wanted
    guess: int
    step: int
    most: int
    limit_bytes: int


def largest(search: Search) -> tuple[int, dict[int, int]]:
    """Returns the largest value whose simulated step fits (0: none), and the bytes that a step with each tried value needs.

    A guess that is off by little needs three or four simulations, since the peak grows nearly in proportion to the setting.

    Raises:
        UserError: as `simulate`.
    """
    peaks: dict[int, int] = {}

    def peak(value: int) -> int:
        if value not in peaks:
            peaks[value] = simulate(_with(search, value)).needed_bytes
        return peaks[value]

    return border(peak, search.guess, search.step, search.most, search.limit_bytes), peaks


def _with(search: Search, value: int) -> SimulationRequest:
    """Returns the request with another value of the setting, and the rows that it then has."""
    request, config = search.request, search.request.config
    changed = RunConfig.model_validate(config.model_dump(mode="json") | changes_for(search.wanted, config, value))
    if search.wanted is Wanted.MAX_LENGTH:
        cut = [min(length, value) for length in request.lengths]
        answers = [min(length, value) for length in request.labeled]
        targets = [min(length, config.max_target_length or value) for length in request.targets]
        return replace(request, config=changed, lengths=cut, labeled=answers, targets=targets)
    if search.wanted is Wanted.MICRO_BATCH_SIZE:

        def rows(lengths: list[int]) -> list[int]:
            return (lengths * -(-value // max(len(lengths), 1)))[:value]

        lengths, labeled, targets = rows(request.lengths), rows(request.labeled), rows(request.targets)
        return replace(request, config=changed, lengths=lengths, labeled=labeled, targets=targets)
    return replace(request, config=changed)


def main() -> None:
    def answer(text: str) -> dict[str, Any]:
        if "--largest" not in sys.argv:
            return asdict(simulate(TypeAdapter(SimulationRequest).validate_json(text)))
        value, peaks = largest(TypeAdapter(Search).validate_json(text))
        return {"value": value, "peaks": peaks}

    answer_json(answer)


if __name__ == "__main__":
    main()
