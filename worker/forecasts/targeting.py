"""The modules that a run's method trains, listed by a process with limits (training/models/target_modules.py)."""

from typing import Any

from training.config.fields import ConfigError
from training.errors import Problem
from worker.machine import programs
from worker.machine.programs import Limits, ProgramError
from worker.runs.settle import Settled

# Importing the libraries takes most of the time. The files are what a hub sends of a model besides its weights.
_LIMITS = Limits(8 * 2**30, seconds=120, file_bytes=64 * 2**20)

Answer = dict[str, Any]
"""A `Targets` as JSON."""


def list_targets(settled: Settled) -> Answer:
    """Counts of trained parameters and the trained modules in groups.

    Raises:
        ConfigError: the model cannot be built, no module matches, or the user may not read the model.
    """
    text = settled.readable.model_dump_json()
    try:
        answer: Answer = programs.run_for_json(
            programs.TARGETS, [], _LIMITS, text=text, variables=programs.HUB_WITH_TOKEN
        )
    except ProgramError as error:
        fix = "Check that the model can be loaded and that the training packages are installed on this machine."
        raise ConfigError([Problem("model", settled.typed.model, f"cannot be inspected ({error}).", fix)]) from None
    if "problem" in answer:
        raise ConfigError([Problem(**answer["problem"])])
    return answer
