"""Rules on the learning rate and its schedule."""

from collections.abc import Iterator

from training.config.choices import Method, Scheduler
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.rules.conflict import Conflict, rule


@rule
def reduce_on_plateau_needs_evaluation(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.lr_scheduler is Scheduler.REDUCE_ON_PLATEAU and not config.evaluates:
        yield Conflict(
            ("lr_scheduler", "eval_steps", "eval_split"),
            "reduce_on_plateau needs the evaluation loss, and the run does not evaluate during training.",
            "Set eval_steps and eval_split above 0, or lr_scheduler to cosine.",
            {"lr_scheduler": "cosine"},
        )


@rule
def warmup_and_decay_fit_into_the_run(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.lr_scheduler is Scheduler.WSD and config.warmup < 1 and config.warmup + config.decay_share > 1:
        yield Conflict(
            ("decay_share", "warmup"),
            f"Warmup ({config.warmup:g}) plus decay ({config.decay_share:g}) is longer than the run.",
            "Lower warmup or decay_share.",
            {"decay_share": round(1 - config.warmup, 4)},
        )


@rule
def full_fine_tuning_needs_a_small_learning_rate(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.method is Method.FULL and config.learning_rate >= 1e-3:
        yield Conflict(
            ("learning_rate", "method"),
            f"Full fine-tuning with a learning rate of {config.learning_rate:g} is likely to destroy the model's knowledge.",
            "Set learning_rate to 1e-5 to 5e-5.",
            {"learning_rate": 2e-5},
            blocking=False,
        )
