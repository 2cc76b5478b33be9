"""Graders of OpenAI's reinforcement fine-tuning as rewards of a run."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from training.errors import UserError

Entries = list[dict[str, Any]]

PYTHON_FILE_FIX = "Give the grader as a reward of Lathe in `lathe`: rewards, and reward_code."
_OPERATIONS = ("eq", "ne", "like", "ilike")
_SIMILARITIES = tuple(f"rouge_{size}" for size in (1, 2, 3, 4, 5, "l"))
_KINDS = "string_check, text_similarity, python, multi"
_GRADE = re.compile(r"^def\s+grade\s*\(", re.MULTILINE)
# A sum of graders, each with a factor before or after it, or a divisor: 0.5 * a + b / 2 - c
_NUMBER = r"\d+(?:\.\d+)?"
_TERM = re.compile(
    rf"\s*(?P<sign>[+-])?\s*(?:(?P<before>{_NUMBER})\s*\*\s*)?(?P<name>[A-Za-z_]\w*)"
    rf"(?:\s*\*\s*(?P<after>{_NUMBER})|\s*/\s*(?P<divisor>{_NUMBER}))?\s*"
)
_LONGEST, _LONGEST_SUM = 10_000, 2000  # characters
# What an owner's function `grade(sample, item)` gets, called as a reward.
_CALL = """

def {name}(prompt, answer, expected, row):
    import json as _json

    try:
        parsed = _json.loads(answer)
    except ValueError:
        parsed = None
    return grade({{"output_text": answer, "output_json": parsed}}, row)
"""


def rewards_of(grader: Mapping[str, Any], path: str) -> tuple[Entries, str]:
    """The rewards that compute a grader, as the setting `rewards` has them, and their code (`reward_code`), which may be empty.

    `path` names the grader in errors.

    Raises:
        UserError: the grader is wrong, or of a kind that Lathe does not compute.
    """
    if grader.get("type") != "multi":
        entry, code = _single(grader, path)
        return [entry], code
    graders = grader.get("graders")
    if not isinstance(graders, dict) or not graders:
        raise UserError(f"{path}.graders", None, "is not an object of graders by name.", "Give at least one grader.")
    weights = dict(_weights(grader.get("calculate_output"), f"{path}.calculate_output"))
    entries, codes = Entries(), []
    for name, weight in weights.items():
        if name not in graders:
            known = ", ".join(graders)
            raise UserError(f"{path}.calculate_output", name, "is not one of the graders.", f"Use {known}.")
        entry, code = _single(graders[name], f"{path}.graders.{name}")
        entries.append(entry | {"name": name, "weight": weight})
        codes.append(code)
    if unused := next((name for name in graders if name not in weights), None):
        fix = "Add it to calculate_output, or leave it out."
        raise UserError(f"{path}.graders.{unused}", None, "is not part of calculate_output.", fix)
    if sum(map(bool, codes)) > 1:
        fix = "Write one function that computes both."
        raise UserError(f"{path}.graders", None, "has several graders of type python.", fix)
    return entries, "".join(codes)


def _single(grader: Any, path: str) -> tuple[dict[str, Any], str]:
    kind = grader.get("type") if isinstance(grader, Mapping) else None
    match kind:
        case "string_check":
            operation = _one_of(grader, "operation", _OPERATIONS, path)
            return {"reward": kind, **_texts(grader, path), "operation": operation}, ""
        case "text_similarity":
            metric = _one_of(grader, "evaluation_metric", _SIMILARITIES, path)
            return {"reward": kind, **_texts(grader, path), "evaluation_metric": metric}, ""
        case "python":
            return _python(grader, path)
    fix = f"Use {_KINDS}; or give a reward of Lathe in `lathe`: rewards (docs/grpo.md), such as a judge."
    raise UserError(f"{path}.type", kind, "is not a grader that Lathe computes.", fix)


def _texts(grader: Mapping[str, Any], path: str) -> dict[str, str]:
    texts = {name: grader.get(name) for name in ("input", "reference")}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise UserError(f"{path}.{name}", text, "is not a text.", "Give a text, such as {{sample.output_text}}.")
        if len(text) > _LONGEST:
            raise UserError(f"{path}.{name}", None, f"has {len(text):,} characters.", f"Give at most {_LONGEST:,}.")
    return {name: str(text) for name, text in texts.items()}


def _one_of(grader: Mapping[str, Any], name: str, choices: tuple[str, ...], path: str) -> str:
    value = grader.get(name)
    if value not in choices:
        fix = f"Lathe computes {', '.join(choices)}."
        raise UserError(f"{path}.{name}", value, "is not one that Lathe computes.", fix)
    return str(value)


def _python(grader: Mapping[str, Any], path: str) -> tuple[dict[str, Any], str]:
    source = grader.get("source")
    if not isinstance(source, str) or not _GRADE.search(source):
        fix = "Give the source of `def grade(sample, item)`, which returns a number."
        raise UserError(f"{path}.source", None, "has no function grade.", fix)
    return {"reward": "graded"}, source + _CALL.format(name="graded")


def _weights(text: Any, path: str) -> Iterator[tuple[str, float]]:
    """The graders of a sum with their weights."""
    fix = "Write a sum of graders with factors, such as 0.7 * format + 0.3 * answer."
    if not isinstance(text, str) or not text.strip() or len(text) > _LONGEST_SUM:
        raise UserError(path, text if isinstance(text, str) else None, "is not a formula of graders.", fix)
    place, seen = 0, set[str]()
    while place < len(text):
        term = _TERM.match(text, place)
        if term is None or (place > 0 and not term["sign"]) or term["name"] in seen:
            raise UserError(path, text[:200], "is not a sum of the graders, each once.", fix)
        seen.add(term["name"])
        weight = float(term["before"] or 1) * float(term["after"] or 1) / float(term["divisor"] or 1)
        yield term["name"], -weight if term["sign"] == "-" else weight
        place = term.end()
