"""Rules on settings that exclude each other, one module per subject. A conflict has a reason, a fix and changes. No torch."""

from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.errors import Problem
from training.rules import (
    lora,
    memory,
    methods,
    optimizers,
    outputs,
    own_deepspeed,
    precision,
    processes,
    sampling,
    speed,
    strategies,
    tasks,
)
from training.rules.conflict import Conflict, rules_in, settings_without_effect

SUBJECTS = (
    processes,
    precision,
    strategies,
    tasks,
    sampling,
    own_deepspeed,
    methods,
    lora,
    optimizers,
    outputs,
    speed,
    memory,
)
_RULES = [rule for subject in SUBJECTS for rule in rules_in(subject)]


def check(config: RunConfig, machine: Machine) -> list[Conflict]:
    """Every conflict in `config` on `machine`, in the order of the rules, then settings without effect that no rule names."""
    conflicts = [conflict for rule in _RULES for conflict in rule(config, machine)]
    named = {name for conflict in conflicts for name in conflict.settings}
    advice = [conflict for conflict in settings_without_effect(config) if conflict.settings[0] not in named]
    return conflicts + advice


def problems(config: RunConfig, machine: Machine) -> list[Problem]:
    """The conflicts that keep a run from starting on `machine`, each as a problem of its first setting."""
    return [
        Problem(conflict.settings[0], getattr(config, conflict.settings[0]), conflict.reason, conflict.fix)
        for conflict in check(config, machine)
        if conflict.blocking
    ]
