"""How a checkpoint is divided into files, and whether a run with other settings can resume from it. No torch."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from training.config.choices import Offload, Strategy
from training.config.run_config import RunConfig
from training.errors import UserError

LAYOUT_FILE = "layout.json"
_COPIES = {Strategy.SINGLE, Strategy.DDP}


@dataclass(frozen=True)
class CheckpointLayout:
    """The strategy of the ranks that wrote a checkpoint.

    `parameters` are the names of the trained parameters, in the order of the optimizer's state, `shapes` theirs, and `saved_names`
    those in the files of weights.
    """

    strategy: Strategy
    world_size: int
    global_batch_size: int
    parameters: list[str] = field(default_factory=list)
    shapes: list[list[int]] = field(default_factory=list)
    saved_names: list[str] = field(default_factory=list)
    learning_rate: float | None = None

    @property
    def names_in_files(self) -> dict[str, str]:
        """The name of each parameter in the files of weights; Lathe 0.2.0 did not store it."""
        guessed = [plain_adapter_name(name) for name in self.parameters]
        return dict(zip(self.parameters, self.saved_names or guessed, strict=True))

    def write(self, checkpoint: Path) -> None:
        """Writes it into the folder of a checkpoint."""
        (checkpoint / LAYOUT_FILE).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, checkpoint: Path) -> Self | None:
        """The layout of a checkpoint; None for those of Lathe 0.2.0 and before."""
        try:
            values = json.loads((checkpoint / LAYOUT_FILE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return cls(**(values | {"strategy": Strategy(values["strategy"])}))

    def loads_as_it_is(self, config: RunConfig) -> bool:
        """True if the libraries load it into a run with these settings without conversion."""
        if self.strategy in _COPIES or self.strategy is Strategy.FSDP:
            return _kind(self.strategy) == _kind(config.strategy)
        return (self.strategy, self.world_size) == (config.strategy, config.num_processes)


def plain_adapter_name(name: str) -> str:
    """The name under which PEFT usually saves a parameter: without that of the adapter."""
    return name.replace(".modules_to_save.default.", ".").replace(".default", "")


def check_resume(layout: CheckpointLayout, config: RunConfig) -> None:
    """Checks that a run with these settings can continue from a checkpoint with this layout. Raises UserError if it cannot; with
    the reason and the fix."""
    if layout.global_batch_size != config.global_batch_size:
        raise UserError(
            "gradient_accumulation_steps",
            config.gradient_accumulation_steps,
            f"would change the global batch size from {layout.global_batch_size} to {config.global_batch_size} rows in the "
            "middle of a run.",
            _batch_fix(layout, config),
        )
    if not layout.loads_as_it_is(config) and (conflict := _not_converted(layout, config)):
        field_name, reason = conflict
        back = f"Resume with strategy {layout.strategy.value} and num_processes {layout.world_size}."
        raise UserError(field_name, getattr(config, field_name).value, reason, back)


def _not_converted(layout: CheckpointLayout, config: RunConfig) -> tuple[str, str] | None:
    """The setting and the reason for which a run cannot convert a checkpoint with this layout; None if it can."""
    before = f"{layout.strategy.value} on {layout.world_size} processes"
    if Strategy.ZERO0 in (layout.strategy, config.strategy):
        return "strategy", f"cannot continue a checkpoint of {before}: the state of ZeRO stage 0 is not converted."
    if not layout.parameters:
        reason = "its DeepSpeed JSON selects an optimizer that is not converted."
        return "strategy", f"cannot continue a checkpoint of {before}: {reason}"
    if not config.optimizer.traits.elementwise:
        return "optimizer", f"has state that cannot be divided differently; the checkpoint is of {before}."
    for name in ("offload_optimizer", "offload_param"):
        if getattr(config, name) is Offload.NVME:
            return name, f"keeps state in files that are not converted; the checkpoint is of {before}."
    return None


def _kind(strategy: Strategy) -> str:
    return "copies" if strategy in _COPIES else strategy.value


def _batch_fix(layout: CheckpointLayout, config: RunConfig) -> str:
    rows = config.micro_batch_size * config.num_processes // config.sequence_parallel_size
    if layout.global_batch_size % rows == 0:
        return f"Set it to {layout.global_batch_size // rows}."
    return f"Choose num_processes x micro_batch_size so that they divide {layout.global_batch_size}."
