"""Values of shell variables, and what expansions make of them."""

import ast
import operator
import re
from collections.abc import Callable, Mapping

_LONGEST_FORMULA = 200
_LARGEST = 2**63
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_NUMBER_OF = {"nodes": "SLURM_NNODES", "ntasks-per-node": "SLURM_NTASKS_PER_NODE", "ntasks": "SLURM_NTASKS",
              "gpus-per-node": "SLURM_GPUS_ON_NODE", "gres": "SLURM_GPUS_ON_NODE"}  # fmt: skip
_SHORT = {"N": "nodes", "n": "ntasks"}
_SBATCH = re.compile(r"^#SBATCH[ \t]+-{1,2}([\w-]+)(?:[ \t]*=[ \t]*|[ \t]+)(\S+)", re.MULTILINE)


class Unresolved(str):
    """A text whose value is not known, as it is written, and the reason."""

    reason: str

    def __new__(cls, text: str, reason: str) -> "Unresolved":
        value = super().__new__(cls, text)
        value.reason = reason
        return value


Variable = str | list[str]
_MARK = re.compile("\ue000(\\d+)\ue001")


class Unknowns:
    """Parts of words whose values are not known. In a text, a mark stands for each, so that the text can be joined and split."""

    LONGEST = 80

    def __init__(self) -> None:
        self._parts: list[tuple[str, str]] = []

    def mark(self, text: str, reason: str) -> str:
        """The mark of a part, as it is written, with the reason."""
        self._parts.append((text[: self.LONGEST], reason))
        return f"\ue000{len(self._parts) - 1}\ue001"

    def value(self, text: str) -> str:
        """A text without marks; `Unresolved` if it has one."""
        match = _MARK.search(text)
        if match is None:
            return text
        written = _MARK.sub(lambda found: self._parts[int(found.group(1))][0], text)
        return Unresolved(written, self._parts[int(match.group(1))][1])


def is_marked(text: str) -> bool:
    """True if a part of the text is not known."""
    return "\ue000" in text


def without_marks(text: str) -> str:
    """A text of a user, which must not have marks of its own."""
    return text.replace("\ue000", " ").replace("\ue001", " ")


def join(before: Variable, more: str) -> Variable:
    """`name+=more`."""
    if isinstance(before, list):
        return [*before[:-1], (before[-1] if before else "") + more]
    return before + more


def part_of(value: str, operation: str) -> str | None:
    """What `${name...}` makes of a value: without a beginning or end, replaced, cut or in other case. None if it is not read."""
    match = re.fullmatch(r"(##?|%%?)(\*?)([^*?\[\]]*)(\*?)", operation, re.DOTALL)
    if match is not None:
        return _without(value, *match.groups())
    match = re.fullmatch(r"(//?)([^*?\[\]/]+)/?([^/$`]*)", operation, re.DOTALL)
    if match is not None:
        return value.replace(match.group(2), match.group(3), -1 if match.group(1) == "//" else 1)
    match = re.fullmatch(r":(\d{1,6})(?::(\d{1,6}))?", operation)
    if match is not None:
        start = int(match.group(1))
        return value[start : start + int(match.group(2))] if match.group(2) else value[start:]
    return {"^^": value.upper(), ",,": value.lower()}.get(operation)


def _without(value: str, kind: str, before: str, text: str, after: str) -> str | None:
    """The value without a beginning (`#`) or an end (`%`) that a pattern of one `*` matches; twice the sign: the longest."""
    if "#" in kind:
        if after or not text:
            return None
        if not before:
            return value.removeprefix(text)
        at = value.rfind(text) if kind == "##" else value.find(text)
        return value if at < 0 else value[at + len(text) :]
    if before or not text:
        return None
    if not after:
        return value.removesuffix(text)
    at = value.find(text) if kind == "%%" else value.rfind(text)
    return value if at < 0 else value[:at]


def arithmetic(formula: str, variables: Mapping[str, Variable]) -> str | None:
    """The value of `$((formula))`, of integers; None if it needs what is not known."""
    numbers = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda match: _integer(variables.get(match.group(1), "")), formula)
    if len(numbers) > _LONGEST_FORMULA or not re.fullmatch(r"[\d+\-*/%() \t\n]+", numbers) or "**" in numbers:
        return None
    try:
        value = _value(ast.parse(numbers.strip().replace("/", "//"), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None
    return str(value)


def _integer(value: Variable) -> str:
    known = isinstance(value, str) and re.fullmatch(r"\d{1,18}", value)
    return str(int(str(value))) if known else "?"


def _value(node: ast.expr) -> int:
    """The value of a formula. Raises ValueError if it is none of integers, or leaves what a shell can hold, and ZeroDivisionError
    if it divides by 0."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        value = _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
        if abs(value) < _LARGEST:
            return value
    raise ValueError("not a formula of integers")


def slurm_variables(text: str) -> dict[str, Variable]:
    """The variables that Slurm sets from the `#SBATCH` lines of a text."""
    given: dict[str, Variable] = {}
    for option, value in _SBATCH.findall(text):
        name = _NUMBER_OF.get(_SHORT.get(option, option))
        number = value.rsplit(":", 1)[-1].split("-")[0]
        if name and number.isdigit():
            given[name] = number
    if "SLURM_NNODES" in given:
        given["SLURM_JOB_NUM_NODES"] = given["SLURM_NNODES"]
    return given
