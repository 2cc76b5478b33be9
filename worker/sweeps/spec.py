"""A sweep as its file describes it: a configuration, the settings that vary, and the method. docs/sweeps.md explains the format."""

import json
import math
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from training.config import yaml_text
from training.config.fields import ConfigError, Setting, settings
from training.errors import Problem
from training.nearest import nearest
from worker.choices import SearchMethod
from worker.store.tables.sweep_values import MOST_RUNS, SweepSpec, ValueRange

_FIXED = {"name": "Runs are named after their values."}
_EXAMPLE = "Give a list of values, or a range such as {low: 0.00001, high: 0.001, log: true}."
_UNORDERED = ("text", "choice", "boolean")


def parse_sweep(values: Any) -> SweepSpec:
    """The sweep with these values, read from a file or a request.

    Raises:
        ConfigError: one problem for each wrong field.
    """
    if not isinstance(values, dict):
        raise ConfigError([Problem("sweep", None, "is not a mapping.", "Give config and space (docs/sweeps.md).")])
    try:
        spec = SweepSpec.model_validate(values)
    except ValidationError as error:
        # Of a union, pydantic reports an error for each member: one problem for each place is enough.
        found = {problem.field: problem for problem in map(_problem, error.errors())}
        raise ConfigError(list(found.values())) from None
    if problems := _problems(spec):
        raise ConfigError(problems)
    return spec


def read_sweep(path: Path) -> SweepSpec:
    """The sweep in a YAML or JSON file. Raises ConfigError if the file cannot be read, or a field is wrong."""
    try:
        values = yaml_text.load(path.read_text(encoding="utf-8"))
    except (OSError, yaml_text.YamlTextError, UnicodeDecodeError) as error:
        fix = "Give a YAML or JSON file with config and space (docs/sweeps.md)."
        raise ConfigError([Problem("sweep file", str(path), f"cannot be read: {error}", fix)]) from None
    return parse_sweep(values)


def _problem(detail: Any) -> Problem:
    """The first two places of a pydantic error: pydantic names each member of a union that was tried below them."""
    field = ".".join(str(part) for part in detail["loc"][:2])
    name = str(detail["loc"][0])
    value = (
        detail["input"]
        if isinstance(detail["input"], (str, int, float, bool))
        else json.dumps(detail["input"], default=str)[:120]
    )
    if detail["type"] == "extra_forbidden" and len(detail["loc"]) == 1:
        return Problem(field, value, "is not a field of a sweep.", f"Use {', '.join(SweepSpec.model_fields)}.")
    if detail["type"] == "missing" and len(detail["loc"]) == 1:
        return Problem(field, None, "is missing.", SweepSpec.model_fields[name].description or "")
    if name == "space":
        return Problem(field, value, "is neither a list of values nor a range.", _EXAMPLE)
    return Problem(
        field, value, f"{detail['msg'][0].lower()}{detail['msg'][1:]}.", SweepSpec.model_fields[name].description or ""
    )


def _problems(spec: SweepSpec) -> list[Problem]:
    problems = [problem for name, values in spec.space.items() if (problem := _of_setting(spec, name, values))]
    if not spec.space:
        problems.append(Problem("space", None, "names no setting.", "Name a setting that varies, with its values."))
    if spec.method is SearchMethod.RANDOM and spec.trials is None:
        problems.append(
            Problem("trials", None, "is missing.", "Give the number of configurations to draw, such as 12.")
        )
    if spec.method is SearchMethod.GRID and spec.trials is not None:
        fix = "Leave trials out, or set method to random."
        problems.append(
            Problem("trials", spec.trials, "does not apply to a grid, which trains every combination.", fix)
        )
    if spec.seeds > 1 and "seed" in spec.space:
        fix = "Leave seed out of space, or set seeds to 1."
        problems.append(Problem("seeds", spec.seeds, "varies the seed, which space varies too.", fix))
    return problems


def _of_setting(spec: SweepSpec, name: str, values: list[Any] | ValueRange) -> Problem | None:
    field = f"space.{name}"
    if name in _FIXED:
        return Problem(field, None, "cannot vary.", _FIXED[name])
    if name not in settings():
        near = nearest(name, settings())
        fix = f"Did you mean {near[0]}?" if near else "docs/configuration.md lists every setting."
        return Problem(field, None, "is not a setting.", fix)
    if isinstance(values, ValueRange):
        return _of_range(spec, field, settings()[name], values)
    if not values:
        return Problem(field, "[]", "has no values.", _EXAMPLE)
    if len({json.dumps(value, default=str) for value in values}) < len(values):
        return Problem(field, json.dumps(values, default=str), "has a value twice.", "List each value once.")
    return None


def _of_range(spec: SweepSpec, field: str, setting: Setting, values: ValueRange) -> Problem | None:
    bounds = f"{values.low:g} to {values.high:g}"
    if setting.kind in _UNORDERED:
        return Problem(field, bounds, "is a range, and the setting is not a number.", "Give a list of values.")
    if values.low >= values.high:
        return Problem(field, bounds, "is empty: low must be below high.", "Give a lower low or a higher high.")
    if values.log and (values.low <= 0 or values.step):
        fix = "Give a low above 0 and no step, or leave log out."
        return Problem(field, bounds, "cannot be logarithmic from 0 or in equal steps.", fix)
    if not spec.draws and not values.step:
        fix = f"{'Set trials, add' if spec.halves else 'Add'} step, or give a list of values."
        return Problem(field, bounds, "has infinitely many values for a grid.", fix)
    if values.step and math.floor((values.high - values.low) / values.step) >= MOST_RUNS:
        return Problem(field, values.step, f"makes more than {MOST_RUNS} values.", "Give a larger step.")
    return None
