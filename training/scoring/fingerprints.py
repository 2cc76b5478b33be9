"""A fingerprint of each metric: it changes with the metric's options and with the code that computes it, not with comments."""

import ast
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from training.rewards import built_in, judge_reply, reward_model
from training.rewards.built_in import JUDGE, MODEL, MODULES, PACKAGES
from training.rewards.judge import Judge
from training.rewards.rewards import Reward
from training.scoring import text_scores
from training.scoring.request import ACCURACY, BUILT_IN, EvaluationRequest

_DIGITS = 16
_MODULES = {
    "text": text_scores.__name__, "reward": built_in.__name__, JUDGE: judge_reply.__name__, MODEL: reward_model.__name__,
}  # fmt: skip
"""The module that computes a kind of metric; what it imports of the packages of these modules counts too."""
_PACKAGES = {name.rpartition(".")[0] for name in _MODULES.values()}


def fingerprints(request: EvaluationRequest) -> dict[str, str]:
    """The fingerprint of each metric that an evaluation asks for."""
    found = of_built_in(request.built_in) | {reward.name: _of_reward(reward, request.own) for reward in request.rewards}
    if JUDGE in request.metrics:
        found[JUDGE] = _digest(JUDGE, _code(JUDGE))
    return {name: found[name] for name in request.metrics}


def of_built_in(names: Sequence[str]) -> dict[str, str]:
    """The fingerprints of exact_match, accuracy, F1 and ROUGE."""
    assert set(names) <= {*BUILT_IN, ACCURACY}
    return {name: _digest(name, _code("text"), _installed("torchmetrics")) for name in names}


def of_judge(judge: Judge | None) -> dict[str, Any] | None:
    """A judge as score cards show it, its prompt by the SHA-256."""
    if judge is None:
        return None
    digest = hashlib.sha256(judge.prompt.encode()).hexdigest()[:_DIGITS]
    return {"url": judge.url, "model": judge.model, "scale": judge.scale, "prompt_sha256": digest}


def _of_reward(reward: Reward, own: Mapping[str, str]) -> str:
    """Files of own code can import each other: each of them counts."""
    described = {key: value for key, value in reward.document().items() if key not in ("name", "weight")}
    if reward.own:
        return _digest(described, {file: _plain(code) for file, code in own.items()})
    kind = MODEL if reward.kind == MODEL else "reward"
    return _digest(described, _code(kind), _installed(MODULES.get(reward.kind, "")))


@cache
def _code(kind: str) -> tuple[str, ...]:
    return tuple(_plain(code) for _, code in sorted(_imported(_MODULES[kind]).items()))


def _imported(module: str) -> dict[str, str]:
    """The code of a module, and of those of `_PACKAGES` that it imports, by name."""
    found: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        file = Path(__file__).parents[2].joinpath(*name.split(".")).with_suffix(".py")
        found[name] = file.read_text(encoding="utf-8")
        sources = (part.module for part in ast.walk(ast.parse(found[name])) if isinstance(part, ast.ImportFrom))
        waiting += [source for source in sources if source and source.rpartition(".")[0] in _PACKAGES]
    return found


def _plain(code: str) -> str:
    """Python code without comments, docstrings and layout; what is not Python as it is."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code
    for part in ast.walk(tree):
        if isinstance(part, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            part
        ):
            part.body = part.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


@cache
def _installed(module: str) -> str:
    """The package of a module with its version; empty if it is not installed."""
    packages = {known: package.partition(">")[0] for known, package in PACKAGES.values()}
    name = packages.get(module, module)
    try:
        return f"{name} {version(name)}" if name else ""
    except PackageNotFoundError:
        return ""


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:_DIGITS]
