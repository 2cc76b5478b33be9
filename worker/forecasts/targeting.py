"""The modules that a run's method trains, listed by a process with limits (training/models/target_modules.py)."""

from typing import Any

from training.config.run_config import RunConfig
from worker.allowed_paths import with_model_path
from worker.machine import programs
from worker.machine.programs import Limits, ProgramError

# Importing the libraries takes most of the time. The files are what a hub sends of a model besides its weights.
_LIMITS = Limits(8 * 2**30, seconds=120, file_bytes=64 * 2**20)

Answer = dict[str, Any]
"""A `Targets` as JSON, or a `problem` with field, value, message and fix."""


def list_targets(config: RunConfig) -> Answer:
    """Counts of trained parameters and the trained modules in groups, or a problem."""
    text = with_model_path(config).model_dump_json()
    try:
        answer: Answer = programs.run_for_json(
            programs.TARGETS, ["--config", "-"], _LIMITS, text=text, variables=programs.HUB_WITH_TOKEN
        )
    except ProgramError as error:
        fix = "Check that the model can be loaded and that the training packages are installed on this machine."
        message = f"cannot be inspected ({error})."
        return {"problem": {"field": "model", "value": config.model, "message": message, "fix": fix}}
    return answer
