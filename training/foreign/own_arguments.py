"""The arguments that a Python script takes at its start, with their defaults: argparse's, and fields of dataclasses."""

import ast
from collections.abc import Callable, Iterable
from typing import Any

from training.foreign.entries import Values

_USUAL_NAMES = ("args", "opt", "cfg")
Value = Callable[[ast.expr], Any]


def defaults(nodes: Iterable[ast.AST], value: Value) -> Values:
    """The default of each argument; None where the start must give it. `value` gives that of an expression."""
    arguments: Values = {}
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            arguments |= _of_argparse(node, value)
        elif isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(one) for one in node.decorator_list):
            arguments |= _of_dataclass(node, value)
    return arguments


def holders(nodes: Iterable[ast.AST]) -> set[str]:
    """The names of the variables that hold the parsed arguments."""
    names = set(_USUAL_NAMES)
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            function = node.value.func
            if isinstance(function, ast.Attribute) and function.attr.startswith("parse"):
                names |= {one.id for target in node.targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    return names


def _of_argparse(call: ast.Call, value: Value) -> Values:
    flags = [str(one.value) for one in call.args if isinstance(one, ast.Constant)]
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    name = next((flag for flag in flags if flag.startswith("--")), flags[0] if flags else "")
    name = str(value(keywords["dest"])) if "dest" in keywords else name.lstrip("-").replace("-", "_")
    action = value(keywords["action"]) if "action" in keywords else ""
    default = {"store_true": False, "store_false": True}.get(str(action))
    return {name: value(keywords["default"]) if "default" in keywords else default} if name else {}


def _of_dataclass(node: ast.ClassDef, value: Value) -> Values:
    fields: Values = {}
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            fields[line.target.id] = None if line.value is None else _of_field(line.value, value)
    return fields


def _of_field(default: ast.expr, value: Value) -> Any:
    """The default that `field(default=...)` or `field(default_factory=lambda: ...)` gives, or the expression itself."""
    if not isinstance(default, ast.Call):
        return value(default)
    keywords = {keyword.arg: keyword.value for keyword in default.keywords}
    factory = keywords.get("default_factory")
    if isinstance(factory, ast.Lambda):
        return value(factory.body)
    return value(keywords["default"]) if "default" in keywords else None
