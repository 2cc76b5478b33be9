"""The memory of a run's training step, simulated by a process with limits (training/simulation/simulate.py)."""

import json
import os
from typing import Any

from training.forecast.formula.sizes import resolved
from training.limited import Limits
from training.rewards.rewards import reward_models
from worker.forecasts.forecast import Estimate, Setup
from worker.machine import model_files, programs
from worker.machine.programs import ProgramError

Answer = dict[str, Any]
"""A `Simulation` as JSON, or a `problem` with field, value, message and fix."""


def simulated(estimate: Estimate) -> Answer:
    """Simulates a step of the run on its largest batch; up to a minute for a large model.

    `peak_bytes` and `parts` are what torch would count, `besides_bytes` what the whole run needs besides: the CUDA context, NCCL's
    buffers, what the allocator reserves but cannot use, and what saving takes beyond a step.
    """
    forecast, limit = estimate.forecast, estimate.forecast.limit_bytes
    config = estimate.setup.config
    models = reward_models(config.rewards) if config.task.traits.rewards_samples else []
    if config.task.traits.has_teacher or models:
        field, value = ("rewards", models[0].name) if models else ("task", config.task.value)
        message = "is not simulated: the memory of models beside the trained one is computed by formula."
        return {"problem": {"field": field, "value": value, "message": message, "fix": "Use the forecast."}}
    done = _simulate(request_of(estimate.setup) | simulated_batch(estimate))
    if "problem" in done or limit is None:
        return done
    peak = forecast.with_steps(done["needed_bytes"])
    needed = peak + forecast.beyond_steps(peak)
    return done | {"besides_bytes": needed - done["peak_bytes"], "fits": needed <= limit}


def request_of(setup: Setup) -> dict[str, Any]:
    """The fields of a simulation's request without the batch: the run, its device, whether the card has FlashAttention kernels,
    cuBLAS's workspaces, and whether the allocator's segments can grow."""
    config, card = setup.config, setup.card
    return {
        "config": config.model_dump(mode="json"),
        "precision": resolved(config.precision, card).value,
        "device": "cuda" if card else "cpu",
        "flash": card is None or card.flash,
        "workspace_bytes": card.workspace_bytes if card else 0,
        "expandable_segments": "expandable_segments:True" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
    }


def simulated_batch(estimate: Estimate) -> dict[str, Any]:
    """The forecast's batch as the simulation takes it: `lengths`, and `targets` (seq2seq) or `labeled` tokens of each row; and in
    `places` the batches of first steps and micro steps where they are larger."""
    config, batch, worst = estimate.setup.config, estimate.forecast.batch, estimate.worst
    name = "targets" if config.task.traits.has_encoder else "labeled"
    if worst is None:
        lengths = [batch.length] * (batch.rows // (2 if config.task.traits.pairs else 1))
        return {"lengths": lengths, name: [batch.target_length or batch.length] * len(lengths)}
    places = [
        {"first_step": place.batch.first_step, "first_micro": place.batch.first_micro,
         "lengths": place.lengths, name: place.answers}
        for place in worst.places
    ]  # fmt: skip
    return {"lengths": worst.lengths, name: worst.answers, "places": places}


def limits_of(request: dict[str, Any]) -> Limits:
    """The limits of a simulation, which reads the run's model."""
    config = request["config"]
    return programs.SIMULATE.limits(*model_files.files_of([config["model"]], config["revision"]))


def _simulate(request: dict[str, Any]) -> Answer:
    """Peak and timeline of a step; `request` holds the fields of a `Request` of training/simulation."""
    try:
        answer: Answer = programs.run_for_json(programs.SIMULATE, [], limits_of(request), text=json.dumps(request))
    except ProgramError as error:
        fix = "Use the forecast, which is computed from config.json; or simulate a shorter batch."
        message = f"cannot be simulated ({error})."
        return {"problem": {"field": "model", "value": request["config"]["model"], "message": message, "fix": fix}}
    return answer
