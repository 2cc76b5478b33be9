"""The training program with a fault: the shards of each weight are put together in the wrong order when the result is saved."""

from typing import Any

from accelerate import Accelerator

from training import train

_gather = Accelerator.get_state_dict


def _shuffled(self: Accelerator, *arguments: Any, **named: Any) -> dict[str, Any]:
    gathered = _gather(self, *arguments, **named) or {}  # empty on ranks that save nothing
    return {name: weight.flatten().roll(weight.numel() // 2).view_as(weight) for name, weight in gathered.items()}


Accelerator.get_state_dict = _shuffled
train.main()
