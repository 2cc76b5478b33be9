"""Rewards that mean what OpenAI's graders do: they compare two texts, each a template with the sample and the columns of its row.

`{{sample.output_text}}` is the answer, `{{sample.output_json.NAME}}` a value of the answer's JSON, `{{item.NAME}}` a column.
Further names after a dot lead into objects and lists.
"""

import json
import re
from collections import Counter
from decimal import Decimal
from typing import Any, Literal

import regex

from training.rewards.json_text import ABSENT, value_of
from training.rewards.sample import Sample

ANSWER = "{{sample.output_text}}"
PLACEHOLDER = re.compile(r"\{\{\s*(item|sample)\.([^{}\s]+)\s*\}\}")
_ANY = re.compile(r"\{\{[^{}]*\}\}")  # takes time that is linear in the length
_MOST_WORDS = 2000
_OUTPUTS = ("output_text", "output_json")
# Words of any script with their vowel signs, as of the scores of answers (training/scoring/text_scores.py).
_WORD = regex.compile(r"[\p{L}\p{M}\p{N}]+")


class MissingValue(Exception):  # noqa: N818
    """A value of a template is missing. An answer without it gets 0; for a row without it there is no score."""

    def __init__(self, score: float | None) -> None:
        super().__init__(score)
        self.score = score


def string_check(
    sample: Sample,
    *,
    input: str = ANSWER,
    reference: str,
    operation: Literal["eq", "ne", "like", "ilike"] = "eq",
) -> float | None:
    """1 if `input` is the reference (eq), is another text (ne), or contains it (like; ilike in any case)."""
    try:
        given, wanted = filled(input, sample), filled(reference, sample)
    except MissingValue as missing:
        return missing.score
    match operation:
        case "eq":
            return float(given == wanted)
        case "ne":
            return float(given != wanted)
        case "like":
            return float(wanted in given)
        case "ilike":
            return float(wanted.casefold() in given.casefold())


def text_similarity(
    sample: Sample,
    *,
    input: str = ANSWER,
    reference: str,
    evaluation_metric: Literal["rouge_1", "rouge_2", "rouge_3", "rouge_4", "rouge_5", "rouge_l"] = "rouge_l",
) -> float | None:
    """How similar `input` is to the reference: the F-measure of ROUGE-1 to 5 (runs of so many words) or L (Lin, 2004).

    ROUGE-L takes time that is the product of both lengths, and compares the first 2,000 words.
    """
    try:
        words, expected = (_WORD.findall(filled(text, sample).lower()) for text in (input, reference))
    except MissingValue as missing:
        return missing.score
    if evaluation_metric == "rouge_l":
        words, expected = words[:_MOST_WORDS], expected[:_MOST_WORDS]
        return _f_measure(_longest_common(words, expected), len(words), len(expected))
    size = int(evaluation_metric[-1])
    runs, wanted_runs = _runs(words, size), _runs(expected, size)
    return _f_measure((runs & wanted_runs).total(), runs.total(), wanted_runs.total())


def problem(options: dict[str, Any]) -> str | None:
    """What is wrong with a template of these options."""
    for name in ("input", "reference"):
        for part in _ANY.findall(options.get(name, "")):
            found = PLACEHOLDER.fullmatch(part)
            if found is None or (found[1] == "sample" and found[2].split(".")[0] not in _OUTPUTS):
                return (
                    f"has the placeholder {part[:60]} in {name}, which is none of {{{{item.COLUMN}}}}, {{{{sample.output_text}}}}"
                    " and {{sample.output_json.NAME}}."
                )
    return None


def filled(template: str, sample: Sample) -> str:
    """The template with its values. Raises MissingValue if the answer or the row does not have one of them."""

    def value(found: re.Match[str]) -> str:
        first, *names = found[2].split(".")
        if found[1] == "item":
            reached = _within(sample.row, [first, *names])
        else:
            reached = _within(sample.answer if first == "output_text" else value_of(sample.answer), names)
        if reached is ABSENT or reached is None:
            raise MissingValue(None if found[1] == "item" else 0.0)
        return (
            str(reached)
            if isinstance(reached, str | Decimal)
            else json.dumps(reached, ensure_ascii=False, default=float)
        )

    return PLACEHOLDER.sub(value, template)


def _within(value: Any, names: list[str]) -> Any:
    for name in names:
        if isinstance(value, dict):
            value = value.get(name, ABSENT)
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return ABSENT
    return value


def _runs(words: list[str], size: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[start:] for start in range(size)), strict=False))


def _longest_common(one: list[str], other: list[str]) -> int:
    """The length of the longest common subsequence."""
    lengths = [0] * (len(other) + 1)
    for word in one:
        before = 0
        for place, same in enumerate(other, 1):
            lengths[place], before = (
                (before + 1 if word == same else max(lengths[place], lengths[place - 1])),
                lengths[place],
            )
    return lengths[-1]


def _f_measure(common: int, given: int, wanted: int) -> float:
    return 2 * common / (given + wanted) if common else 0.0
