"""The phases of the training program, found in its code."""

import ast
from collections.abc import Iterator

from paths import ROOT

_ENTERS = ("enter", "during")


def phases() -> list[str]:
    """Every phase that a rank enters."""
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in (ROOT / "training").rglob("*.py")]
    constants = dict(pair for tree in trees for pair in _constants(tree))
    found = {_text(call.args[0], constants) for tree in trees for call in ast.walk(tree) if _enters(call)}
    return sorted(found - {None})  # type: ignore[type-var]


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from ((target.id, node.value.value) for target in node.targets if isinstance(target, ast.Name))


def _enters(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Call) and len(node.args) == 1):
        return False
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in _ENTERS


def _text(argument: ast.expr, constants: dict[str, str]) -> str | None:
    """The phase that an argument names; None for a variable."""
    if isinstance(argument, ast.Constant):
        return str(argument.value)
    name = argument.attr if isinstance(argument, ast.Attribute) else getattr(argument, "id", "")
    return constants.get(name) if name.isupper() else None
