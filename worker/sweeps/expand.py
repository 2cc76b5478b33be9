"""The configurations of a sweep: every combination, or draws that depend only on its seed. Pure."""

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from training.config.fields import ConfigError, Setting, parse, settings
from training.config.run_config import Changes, RunConfig
from training.errors import Problem
from worker.store.tables.sweep_values import MOST_CHARACTERS, MOST_RUNS, SweepSpec, ValueRange

_DIGITS = 3  # of drawn values, so that names stay readable
_TRIES = 50  # draws for each configuration before a small space counts as used up
_SHORT = {
    "learning_rate": "lr",
    "lora_r": "r",
    "lora_alpha": "alpha",
    "lora_dropout": "dropout",
    "micro_batch_size": "batch",
}
_LONGEST_VALUE = 24


@dataclass(frozen=True)
class Candidate:
    """A run of a sweep: the number of its configuration from 1, the values that vary, and its settings.

    `config` is None if a value is not valid; then `problems` says why.
    """

    trial: int
    changes: Changes
    name: str
    seed: int | None = None
    config: RunConfig | None = None
    problems: list[Problem] = field(default_factory=list)


def candidates(spec: SweepSpec) -> list[Candidate]:
    """The runs of a sweep: of each configuration one for each seed.

    Raises:
        ConfigError: there are more than 200 runs, their texts are too long together, or there are fewer configurations than draws.
    """
    chosen = list(_drawn(spec) if spec.draws else _combinations(spec))
    _check_count(spec, len(chosen))
    first = int(spec.config.get("seed", settings()["seed"].default)) if spec.seeds > 1 else 0
    seeds = [first + number for number in range(spec.seeds)] if spec.seeds > 1 else [None]
    return [_candidate(spec, number, changes, seed) for number, changes in enumerate(chosen, start=1) for seed in seeds]


def short_name(name: str) -> str:
    """A setting's name in the names of runs: lr, r, batch, ..."""
    return _SHORT.get(name, name)


def in_short(value: Any) -> str:
    """A value in the names of runs: 0.0001 as 1e-04."""
    text = f"{value:.{_DIGITS}g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _LONGEST_VALUE else f"…{text[-_LONGEST_VALUE:]}"


def words(changes: Changes, seed: int | None = None) -> str:
    """The values of a configuration: "lr=0.0001 r=8"."""
    values = changes | ({"seed": seed} if seed is not None else {})
    return " ".join(f"{short_name(name)}={in_short(value)}" for name, value in values.items())


def _check_count(spec: SweepSpec, configurations: int) -> None:
    """Limits the runs, and their settings together: each run has the texts of all, and lists of runs read them."""
    runs = configurations * spec.seeds
    if runs > MOST_RUNS:
        fix = "Use fewer values or seeds, or set method to random and trials to the number of configurations."
        raise ConfigError([Problem("space", None, f"makes {runs:,} runs; at most {MOST_RUNS} are possible.", fix)])
    if (length := len(json.dumps(spec.config)) * runs) > MOST_CHARACTERS:
        message = f"has {length:,} characters in {runs:,} runs; at most {MOST_CHARACTERS:,} are possible."
        fix = "Shorten its texts (chat_template, reward_code, deepspeed_config), or make fewer runs."
        raise ConfigError([Problem("config", None, message, fix)])


def _candidate(spec: SweepSpec, number: int, changes: Changes, seed: int | None) -> Candidate:
    title = f"{(spec.name or 'Sweep')[:60]} · {words(changes, seed)}"[:120]
    values = spec.config | changes | ({"seed": seed} if seed is not None else {}) | {"name": title}
    try:
        return Candidate(number, changes, title, seed, parse(values))
    except ConfigError as error:
        return Candidate(number, changes, title, seed, None, error.problems)


def _combinations(spec: SweepSpec) -> Iterator[Changes]:
    """Every combination, the last setting fastest; counted before any is made."""
    lists = [_listed(settings()[name], values) for name, values in spec.space.items()]
    _check_count(spec, math.prod(map(len, lists)))
    for values in itertools.product(*lists):
        yield dict(zip(spec.space, values, strict=True))


def _drawn(spec: SweepSpec) -> Iterator[Changes]:
    """Different draws: PCG64 seeded with the sweep's seed, in the order of the settings. More trials keep the first ones."""
    generator = np.random.Generator(np.random.PCG64(spec.seed))
    draws, seen = spec.trials or 1, set[str]()
    for _ in range(draws * _TRIES):
        changes = {name: _draw(generator, settings()[name], values) for name, values in spec.space.items()}
        if (key := repr(changes)) not in seen:
            seen.add(key)
            yield changes
        if len(seen) == draws:
            return
    message = f"is more than the space has: {len(seen)} different configurations were drawn."
    raise ConfigError([Problem("trials", draws, message, f"Set trials to {len(seen)}, or add values.")])


def _draw(generator: np.random.Generator, setting: Setting, values: list[Any] | ValueRange) -> Any:
    share = float(generator.random())
    if not isinstance(values, ValueRange):
        return values[min(int(share * len(values)), len(values) - 1)]
    if values.step:
        steps = _listed(setting, values)
        return steps[min(int(share * len(steps)), len(steps) - 1)]
    if values.log:
        low, high = math.log(values.low), math.log(values.high)
        number = math.exp(low + share * (high - low))
    else:
        number = values.low + share * (values.high - values.low)
    rounded = round(number) if setting.kind == "integer" else float(f"{number:.{_DIGITS}g}")
    return type(rounded)(min(max(rounded, values.low), values.high))


def _listed(setting: Setting, values: list[Any] | ValueRange) -> list[Any]:
    if not isinstance(values, ValueRange):
        return values
    assert values.step
    count = math.floor((values.high - values.low) / values.step + 1e-9) + 1
    numbers = [values.low + number * values.step for number in range(count)]
    return [round(number) if setting.kind == "integer" else float(f"{number:.9g}") for number in numbers]
