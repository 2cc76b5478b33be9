"""The trainer class, its arguments and the collator of each task."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from transformers import TrainingArguments

from training.batches.collators import (
    ClassCollator,
    Collate,
    Collator,
    OddsCollator,
    PairCollator,
    ScoreCollator,
    TargetCollator,
    UnpairedCollator,
)
from training.batches.sets import tokens, with_sets
from training.config.choices import Task
from training.config.run_config import RunConfig
from training.trainer.reporting_trainer import ReportingTrainer
from training.trainer.token_trainer import ClassTrainer, RunTrainer


@dataclass(frozen=True)
class Objective:
    """What a task trains with: `collator` takes the padding token's id; `options` are extra values for `arguments`."""

    trainer: type[ReportingTrainer]
    collator: Callable[[int], Collate]
    arguments: type[TrainingArguments] = TrainingArguments
    options: dict[str, Any] = field(default_factory=dict)


def objective(config: RunConfig) -> Objective:
    """Returns the objective of the run's task. Imports trl, which takes seconds, only for the tasks that need it."""
    match config.task:
        case Task.SFT | Task.PRETRAINING:
            return Objective(RunTrainer, Collator)
        case Task.SEQ2SEQ:
            return Objective(RunTrainer, lambda pad: with_sets(TargetCollator(pad), tokens))
        case Task.CLASSIFICATION:
            return Objective(ClassTrainer, lambda pad: with_sets(ClassCollator(pad), lambda _: 1))
        case _:
            return _preference(config)


def _preference(config: RunConfig) -> Objective:
    from trl.experimental.orpo.orpo_config import ORPOConfig
    from trl.trainer.dpo_config import DPOConfig
    from trl.trainer.kto_config import KTOConfig
    from trl.trainer.reward_config import RewardConfig

    from training.trainer.preference_trainers import DPORun, KTORun, ORPORun, RewardRun

    # Rows are truncated before they reach the trainer.
    no_truncation = {"max_length": None}
    match config.task:
        case Task.DPO:
            options = no_truncation | {"beta": config.beta, "loss_type": [config.dpo_loss.value]}
            return Objective(DPORun, PairCollator, DPOConfig, options)
        case Task.KTO:
            weights = {name: getattr(config, name) for name in ("beta", "desirable_weight", "undesirable_weight")}
            # UnpairedCollator pairs answers within each batch, so rows need no special order.
            return Objective(
                KTORun,
                lambda pad: UnpairedCollator(pad, config.max_length),
                KTOConfig,
                no_truncation | weights | {"train_sampling_strategy": "sequential"},
            )
        case Task.ORPO:
            return Objective(ORPORun, OddsCollator, ORPOConfig, {"beta": config.beta, "max_length": config.max_length})
        case _:
            return Objective(RewardRun, ScoreCollator, RewardConfig, no_truncation)
