"""How each task trains: its trainer with the arguments that are its own, and its batches."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from transformers import TrainingArguments

from training.collators import (
    ClassCollator,
    Collate,
    OddsCollator,
    PairCollator,
    ScoreCollator,
    TargetCollator,
    UnpairedCollator,
)
from training.config import RunConfig, Task
from training.data import Collator
from training.reporting import Reporting


@dataclass(frozen=True)
class Objective:
    """`collator` takes the padding token's id; `options` are those of `arguments` that are the task's own."""

    trainer: type[Reporting]
    collator: Callable[[int], Collate]
    arguments: type[TrainingArguments] = TrainingArguments
    options: dict[str, Any] = field(default_factory=dict)


def objective(config: RunConfig) -> Objective:
    """What trains `config`. trl takes seconds to import, and only the tasks that need it wait for it."""
    from training.trainer import ClassTrainer, RunTrainer

    match config.task:
        case Task.SFT | Task.PRETRAINING:
            return Objective(RunTrainer, Collator)
        case Task.SEQ2SEQ:
            return Objective(RunTrainer, TargetCollator)
        case Task.CLASSIFICATION:
            return Objective(ClassTrainer, ClassCollator)
        case _:
            return _preference(config)


def _preference(config: RunConfig) -> Objective:
    from trl.experimental.orpo.orpo_config import ORPOConfig
    from trl.trainer.dpo_config import DPOConfig
    from trl.trainer.kto_config import KTOConfig
    from trl.trainer.reward_config import RewardConfig

    from training.preference_trainers import DPORun, KTORun, ORPORun, RewardRun

    # Rows are cut before they come to the trainer.
    uncut = {"max_length": None}
    match config.task:
        case Task.DPO:
            options = uncut | {"beta": config.beta, "loss_type": [config.dpo_loss.value]}
            return Objective(DPORun, PairCollator, DPOConfig, options)
        case Task.KTO:
            weights = {name: getattr(config, name) for name in ("beta", "desirable_weight", "undesirable_weight")}
            # Its answers are paired within each batch (UnpairedCollator), so that rows may come in any order.
            return Objective(
                KTORun,
                lambda pad: UnpairedCollator(pad, config.max_length),
                KTOConfig,
                uncut | weights | {"train_sampling_strategy": "sequential"},
            )
        case Task.ORPO:
            return Objective(ORPORun, OddsCollator, ORPOConfig, {"beta": config.beta, "max_length": config.max_length})
        case _:
            return Objective(RewardRun, ScoreCollator, RewardConfig, uncut)
