"""The memory of a run's training step, simulated by a process with limits (training/simulation/simulate.py)."""

import json
from typing import Any

from training.config.choices import Precision
from training.config.run_config import RunConfig
from worker.allowed_paths import with_model_path
from worker.machine import programs
from worker.machine.programs import Limits, ProgramError

# A 7B model takes about 60 s. The files are what a hub sends of a model besides its weights.
_LIMITS = Limits(12 * 2**30, seconds=300, file_bytes=64 * 2**20)

Answer = dict[str, Any]
"""A `Simulation` as JSON, or a `problem` with field, value, message and fix."""


def simulate(config: RunConfig, precision: Precision, lengths: list[int], **batch: Any) -> Answer:
    """Peak and timeline of a step on rows of these lengths; `batch` holds the other fields of a `Request`."""
    settings = with_model_path(config).model_dump(mode="json")
    request = json.dumps({"config": settings, "precision": precision.value, "lengths": lengths, **batch})
    try:
        answer: Answer = programs.run_for_json(
            programs.SIMULATE, ["--request", "-"], _LIMITS, text=request, variables=programs.HUB_WITH_TOKEN
        )
    except ProgramError as error:
        fix = "Use the forecast, which is computed from config.json; or simulate a shorter batch."
        message = f"cannot be simulated ({error})."
        return {"problem": {"field": "model", "value": config.model, "message": message, "fix": fix}}
    return answer
