"""The score in a judge's reply, from the scale: JSON first, then what is marked as the score, then N/M. Else there is no score.

A reply that can be read in two ways has no score: a row without one is counted, a wrong one is believed.
"""

import json
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

_NAMES = (
    "score", "rating", "grade", "bewertung", "punktzahl", "gesamtnote", "puntuación", "calificación", "pontuação", "punteggio",
    "оценка", "ocena", "puan", "skor", "điểm", "得分", "评分", "分数", "點數", "評分", "スコア", "点数", "評点", "점수", "평점",
)  # fmt: skip
_LONGEST = 20_000  # characters that are read, from the end
_THOUGHT = re.compile(r"</?think(?:ing)?>", re.IGNORECASE)
_MARKUP = re.compile(r"[*`]+|(?<!\w)_+|_+(?!\w)")
_HALVES = str.maketrans({"½": ".5", "¼": ".25", "¾": ".75"})
_DASH = "[-\u2013\u2014]"
_VALUE = (
    r"(?P<value>[-+]?(?:\d{1,9}(?:[.,]\d{1,2}|\.\d{3,20})?|\.\d{1,20})(?:e[-+]?\d{1,3})?)"
    r"(?:分|点|점)?(?!\w|[.,]\d|\s*stars?\b(?!\s*out))"
)
_OF = (
    r"(?:\s*(?:stars?|points?|punkten?))?\s*(?:/|\u2044|(?P<word>out of|of|von|sur|de|из|su)\s)\s*"
    r"(?P<most>\d{1,9}(?:[.,]\d{1,9})?)(?!\d|[.,/]\d)"
)
# "7 out of 10 facts are right" is no score.
_COUNTED = re.compile(
    r"\s+(?!points?\b|punkten?\b|stars?\b|because\b|since\b|as\b|and\b|but\b|for\b|weil\b|da\b)\w", re.IGNORECASE
)
_NAME = rf"(?<!\w)(?P<final>(?:final|overall|total)[\s-]*)?(?:{'|'.join(_NAMES)})(?!\w)[\"']?(?:\s*[(\[][^)\]\n]{{0,40}}[)\]])?"
_END = rf"(?P<percent>\s*%)?(?:[\"']?(?:</\w+>)?{_OF})?(?!\s*(?:=|→|->))(?!\s*(?:{_DASH}|to|bis)\s*\d)"
# As in Score: 3, "score": 3, <score>3</score>, | Score | 3 |
_MARKED = re.compile(
    rf"{_NAME}\s*(?:[:=|>\n]|is\b|ist\b|\s{_DASH}\s|→)+\s*[\"'\[]*\s*{_VALUE}{_END}", re.IGNORECASE | re.DOTALL
)
# "a score of 3", "the score would be 3", but not "a score of 10 would need sources"
_SAID = re.compile(
    rf"{_NAME}\s+(?:of\s+|would be\s+|will be\s+)?{_VALUE}{_END}(?!\s*:|\s+(?:would|requires?|needs?|means|is|if|had|but)\b)",
    re.IGNORECASE,
)
_LIMIT = re.compile(
    r"(?:max(?:imum|imal)?|min(?:imum|imal)?|possible|highest|lowest|perfect|full|passing)\s*\Z", re.IGNORECASE
)
_RANGE = re.compile(
    rf"\d\s*(?:{_DASH}|to\b|or\b|and\b|bis\b|oder\b|und\b)\s*\Z", re.IGNORECASE
)  # before its end: 6 to 7/10
_RATIO = re.compile(rf"(?<![\w.,/+\u2044-]){_VALUE}{_OF}", re.IGNORECASE)
_BOXED = re.compile(rf"\\boxed\s*\{{\s*{_VALUE}(?:{_OF})?\s*\}}", re.IGNORECASE)
_ALONE = re.compile(rf"{_VALUE}(?P<percent>\s*%)?(?:{_OF})?\.?", re.IGNORECASE)


def score_in(reply: str, scale: float) -> float | None:
    """The score in a reply, from 0 to 1. None if there is none from 0 to `scale`, or several differ.

    It is the score in JSON, else a marked one ("Score: 3"; a final one before others), else one said of the scale ("3 out of 10",
    "a score of 3"), else the number that is all of the reply or of its last line.
    """
    before, thought, rest = reply.rpartition("</think>")
    text = unicodedata.normalize("NFKC", (rest if thought else before + rest)[-_LONGEST:].translate(_HALVES))
    if _THOUGHT.search(text):
        return None  # it ended while the judge still thought
    if named := [*_in_json(text)]:
        return _agreed([_of_json(value, scale) for value in named])
    text = _MARKUP.sub("", text)
    marked = _named(_MARKED, text)
    final = [match for match in marked if match["final"]]
    of_scale = [match for match in _RATIO.finditer(text) if _is_of_scale(match, scale)]
    said = [*_named(_SAID, text), *_BOXED.finditer(text), *of_scale]
    last = [match for line in text.strip().splitlines()[-1:] if (match := _ALONE.fullmatch(line.strip("[]# ")))]
    for matches in (final, marked, said, last):
        if matches:
            return _agreed([_share(match, scale) for match in matches])
    return None


def _is_of_scale(match: re.Match[str], scale: float) -> bool:
    counted = match["word"] and _COUNTED.match(match.string, match.end())
    return _number(match["most"]) == scale and not counted


def _named(pattern: re.Pattern[str], text: str) -> list[re.Match[str]]:
    """The scores that the pattern finds by their name, apart from limits such as "maximum score: 10"."""
    return [
        match for match in pattern.finditer(text) if not _LIMIT.search(text, max(0, match.start() - 20), match.start())
    ]


def _in_json(text: str) -> Iterator[Any]:
    """Yields what the JSON objects in a text have under the name of a score."""
    decoder, place = json.JSONDecoder(), 0
    while (place := text.find("{", place)) >= 0:
        try:
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            place += 1
            continue
        lowered = {key.casefold(): content for key, content in value.items()}
        name = next((name for name in _NAMES if name in lowered), None)
        if name is not None:
            yield lowered[name]


def _of_json(value: Any, scale: float) -> float | None:
    if isinstance(value, dict) and "value" in value:
        value = value["value"]
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, str):
        match = _ALONE.fullmatch(value.strip())
        return _share(match, scale) if match else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return _within(value, scale)


def _share(match: re.Match[str], scale: float) -> float | None:
    groups = match.groupdict()
    if match.re is _RATIO and _RANGE.search(match.string, max(0, match.start() - 20), match.start()):
        return None
    most = 100.0 if groups.get("percent") else _number(groups["most"]) if groups.get("most") else scale
    return _within(_number(match["value"]), most)


def _within(value: float, most: float) -> float | None:
    return abs(value) / most if most > 0 and 0 <= value <= most else None


def _number(text: str) -> float:
    return float(text.replace(",", "."))


def _agreed(scores: list[float | None]) -> float | None:
    """The score that all are; None if they differ."""
    return scores[0] if len(set(scores)) == 1 else None
