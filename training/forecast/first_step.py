"""The first step to take where memory is short, the same one for the ladder, the diagnosis of a log and the page. No torch.

It is the next rung of the ladder (training/forecast/step_down.py), which a run takes by itself. Where no rung is left, it is a
setting that changes the result and that a person has to choose: 4-bit base weights, or an optimizer with a smaller state.
"""

from pydantic import ValidationError

from training.config.choices import Method, OptimizerName, Quantization
from training.config.machine import Machine
from training.config.run_config import Changes, RunConfig, stepped_down
from training.forecast.forecast import estimate, full_batch
from training.forecast.gpus import of_machine
from training.forecast.step_down import local_shape, next_rung
from training.model_info.shape import ModelShape
from training.rules import check

LOADING, OPTIMIZER = "loading model", "optimizer"
PART_OF = {
    "loading": LOADING, "start": LOADING, "check": "forward", "forward": "forward", "backward": "backward", "layer": "backward",
    "encoder": "backward", "gradients": "backward", "optimizer": OPTIMIZER, "evaluating": "forward", "saving": "saving",
}  # fmt: skip
"""The part of a step in which the moment of a forecast's peak lies (training/forecast/forecast.py)."""


def first_step(
    config: RunConfig,
    machine: Machine,
    *,
    part: str,
    has_checkpoint: bool = False,
    half_helps: bool = True,
    tokens: int = 0,
    shape: ModelShape | None = None,
) -> Changes | None:
    """The changes to try first after an out-of-memory error in `part` of a step, or in a phase; None if none is left.

    The arguments are those of `next_rung`. `shape` is read from the model's folder if it is not given.
    """
    rung = next_rung(config, machine, part=part, has_checkpoint=has_checkpoint, half_helps=half_helps, tokens=tokens)
    if rung:
        return rung
    for changes in _chosen_by_hand(config, part):
        if _is_allowed(config, changes, machine) and saves_memory(config, changes, machine, shape):
            return changes
    return None


def saves_memory(config: RunConfig, changes: Changes, machine: Machine, shape: ModelShape | None = None) -> bool:
    """True if the forecast of the changed run is lower; False for 4-bit weights of a model whose shape is unknown."""
    shape = shape or local_shape(config)
    if shape is None:
        return "quantization" not in changes
    card, batch = of_machine(machine), full_batch(config)
    before, after = (
        estimate(one, shape, card=card, batch=batch).peak_bytes for one in (config, stepped_down(config, changes))
    )
    return after < before


def _chosen_by_hand(config: RunConfig, part: str) -> list[Changes]:
    """Settings that save memory of a part and change the result."""
    ways: list[Changes] = []
    if part == OPTIMIZER and config.optimizer is OptimizerName.ADAMW and config.method is Method.FULL:
        ways.append({"optimizer": "adamw_8bit"})
    if config.method is Method.LORA and config.quantized is Quantization.NONE:
        ways.append({"method": "qlora", "quantization": "4bit"})
    return ways


def _is_allowed(config: RunConfig, changes: Changes, machine: Machine) -> bool:
    try:
        changed = stepped_down(config, changes)
    except ValidationError:
        return False
    return not any(conflict.blocking for conflict in check(changed, machine))
