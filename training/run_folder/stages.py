"""The stages of a run after its result is saved. Each can be repeated, so that a failure or a kill in one costs neither the result
nor the training: the next attempt begins at the first stage that is left.

STAGES declares them. The run's folder keeps what became of them (STAGES_FILE), from the moment at which the result is whole.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from training.config.run_config import RunConfig
from training.files import write_whole
from training.run_folder.paths import PARITY_FOLDER, STAGES_FILE, saved_result

UNDONE = "undone"
"""In a run's summary: the phases of the stages that are left, each with the reason."""
MOST_KILLS = 2
"""A stage in which this many attempts were killed is left out, so that the later ones are done."""


@dataclass(frozen=True)
class Stage:
    """A stage: its phase, what is said of a run without it, the sentence for its failure, and whether a run needs it.

    `repeats` are the phases that cover what it makes, and are done again after it.
    """

    phase: str
    missing: str
    failure: str
    needed: Callable[[RunConfig, Path], bool]
    repeats: tuple[str, ...] = ()


STAGES = (
    Stage(
        "answering",
        "not answered",
        "The held-out rows were not answered.",
        lambda config, _: config.answer_rows > 0,
        ("describing",),
    ),
    Stage(
        "merging",
        "not merged",
        "The merged model was not written.",
        lambda config, _: config.merge_adapter and config.method.adapts,
        ("verifying", "describing"),
    ),
    Stage(
        "verifying",
        "not verified",
        "The saved result was not verified.",
        lambda _, run_dir: (run_dir / PARITY_FOLDER).is_dir(),  # what the trained model answered
        ("describing",),
    ),
    Stage("describing", "no model card", "The model card was not written.", lambda *_: True),
    Stage("pushing", "not pushed", "The result was not pushed.", lambda config, _: bool(config.push_to_hub)),
)
"""In their order. The training program does them; training/results/finishing.py has the work of each."""
PACKING = Stage("packing", "not packed", "The result was not packed for download.", lambda *_: True)
"""The last one, which the supervisor does, also if others are left."""
MISSING = {stage.phase: stage.missing for stage in (*STAGES, PACKING)}


@dataclass
class Saved:
    """A result that is saved whole: the outcome of the training and the run's summary so far, and what became of the stages.

    `done` are the phases of those that were done, `failed` the others that were tried, with the reasons; `kills` counts the
    attempts that were killed in a phase. `resumes` is what the supervisor says: the next program does what is left, and does not
    train.
    """

    outcome: str
    summary: dict[str, Any]
    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    kills: dict[str, int] = field(default_factory=dict)
    resumes: bool = False

    @classmethod
    def read(cls, run_dir: Path) -> "Saved | None":
        """What is saved in a run's folder; None if there is no whole result, or the file is damaged."""
        try:
            saved = TypeAdapter(cls).validate_json((run_dir / STAGES_FILE).read_bytes())
        except (OSError, ValidationError):
            return None
        return saved if saved_result(run_dir) else None

    def write(self, run_dir: Path) -> None:
        """Writes the file, whole or not at all. Raises OSError if the disk is full."""
        write_whole(run_dir / STAGES_FILE, json.dumps(asdict(self)))

    def finish(self, stage: Stage) -> None:
        """Records that a stage was done."""
        self.failed.pop(stage.phase, None)
        self.done = [phase for phase in self.done if phase not in stage.repeats] + [stage.phase]

    def left(self, config: RunConfig, run_dir: Path) -> list[Stage]:
        """The stages of the program that are left."""
        return [stage for stage in STAGES if stage.needed(config, run_dir) and stage.phase not in self.done]

    def undone(self, config: RunConfig, run_dir: Path, why: str = "") -> dict[str, str]:
        """The phases that are left, with the reasons: `why` for those that were not tried."""
        return {stage.phase: self.failed.get(stage.phase, why) for stage in self.left(config, run_dir)}
