"""The options of built-in rewards, read from the signatures of their functions."""

import inspect
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from training.errors import UserError
from training.rewards import built_in
from training.rewards.judge import Judge
from training.rewards.reward_model import RewardModel

Described = TypeVar("Described", bound=BaseModel)

_NAMES = {
    str: "text",
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    list[str]: "a list of texts",
}

_SHAPES = {
    built_in.JUDGE: 'Give {"reward": "judge", "url": "http://HOST:PORT/v1", "model": "NAME"}, and prompt and scale if you like.',
    built_in.MODEL: 'Give {"reward": "model", "run": "ID"}, or a folder or hub id as "model"; also quantization and max_length.',
}
"""How rewards that are not functions are written."""


def check(kind: str, options: dict[str, Any]) -> None:
    """Checks the options of a built-in reward.

    Raises:
        UserError: there is no such option, a value is wrong, or a package is missing.
    """
    if kind in _SHAPES:
        judge_of(options) if kind == built_in.JUDGE else reward_model_of(options)
        return
    known = declared(built_in.REWARDS[kind])
    for name, value in options.items():
        if name not in known:
            fix = f"Its options are: {', '.join(known) or 'none'}."
            raise UserError("rewards", name, f"is no option of {kind}.", fix)
        if (expected := _mismatch(value, known[name].annotation)) is not None:
            raise UserError("rewards", value, f"is not {expected}: {kind}, option {name}.", f"Give {expected}.")
    for name, option in known.items():
        if option.default is inspect.Parameter.empty and name not in options:
            fix = f'Give it: {{"reward": "{kind}", "{name}": ...}}.'
            raise UserError("rewards", kind, f"needs the option {name}.", fix)
    _installed(kind)
    if problem := built_in.problem(kind, options):
        raise UserError("rewards", next(iter(options.values()), kind), problem, "Correct it; see docs/evaluation.md.")


def judge_of(options: dict[str, Any]) -> Judge:
    """The judge that the options of a reward describe.

    Raises:
        UserError: an option is missing or wrong.
    """
    return _described(Judge, built_in.JUDGE, options)


def reward_model_of(options: dict[str, Any]) -> RewardModel:
    """The reward model that the options of a reward describe.

    Raises:
        UserError: an option is missing or wrong.
    """
    return _described(RewardModel, built_in.MODEL, options)


def _described(shape: type[Described], kind: str, options: dict[str, Any]) -> Described:
    try:
        return shape.model_validate(options)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        place = f"{kind}, option {name}" if name else kind
        message = f"is wrong: {place}: {first['msg'].removeprefix('Value error, ')}."
        raise UserError("rewards", options.get(name, kind), message, _SHAPES[kind]) from None


def declared(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The options of a built-in reward by name: its keyword-only parameters."""
    parameters = inspect.signature(function).parameters.items()
    return {name: part for name, part in parameters if part.kind is inspect.Parameter.KEYWORD_ONLY}


def _mismatch(value: Any, annotation: Any) -> str | None:
    """What a value of this type would be, unless the value is one."""
    if get_origin(annotation) is Literal:
        choices = get_args(annotation)
        return None if value in choices else " or ".join(choices)
    kinds = [kind for kind in (get_args(annotation) or (annotation,)) if kind is not type(None)]
    return None if any(map(_fits, [value] * len(kinds), kinds)) else " or ".join(_NAMES[kind] for kind in kinds)


def _fits(value: Any, kind: Any) -> bool:
    if kind == list[str]:
        return isinstance(value, list) and all(isinstance(part, str) for part in value)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def _installed(kind: str) -> None:
    module, package = built_in.PACKAGES.get(kind, ("", ""))
    if module and find_spec(module) is None:
        fix = f"Install it in the environment of Lathe: pip install '{package}'"
        raise UserError("rewards", kind, f"needs the package {package}, which is not installed.", fix)
