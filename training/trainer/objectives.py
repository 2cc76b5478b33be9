"""The objective of each task."""

from training.config.run_config import RunConfig
from training.config.task import Task
from training.parts import named
from training.trainer.objective import Objective

_TOKENS = "token_objective:TokenObjective"
_OBJECTIVES = {
    Task.SFT: _TOKENS,
    Task.PRETRAINING: _TOKENS,
    Task.SEQ2SEQ: _TOKENS,
    Task.CLASSIFICATION: "class_objective:ClassObjective",
    Task.DPO: "preference_objectives:DpoObjective",
    Task.KTO: "preference_objectives:KtoObjective",
    Task.ORPO: "preference_objectives:OrpoObjective",
    Task.REWARD: "preference_objectives:RewardObjective",
    Task.GRPO: "policy_objective:PolicyObjective",
    Task.DISTILL: "distillation_objective:DistillationObjective",
}
"""Module and class. Those of trl's losses are imported only for the tasks that need them, since that takes seconds."""


def objective_of(config: RunConfig) -> type[Objective]:
    """Returns the objective of the run's task."""
    made: type[Objective] = named(f"training.trainer.{_OBJECTIVES[config.task]}")
    return made
