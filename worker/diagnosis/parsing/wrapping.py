"""Joins lines that a terminal broke at its width, in the middle of words."""

import re
from collections import defaultdict
from collections.abc import Sequence

_NARROWEST = 60  # characters
_USUAL = (80, 100, 120, 128, 132, 140, 150, 160, 180, 200, 240)
_STARTS = re.compile(
    r"\s*$|\s+(?:File \"|\^+|~+\^|\.\.\.|raise |return |self\.)|Traceback \(|\[?(?:rank|default)\d+\]|\[rank: ?\d"
    r"|\[\d+,[\w:,-]+\]<std"
    r"|\[?\d{4}-\d\d-\d\d|\[?\d\d:\d\d:\d\d|\(\w[\w.:]* pid=|\[?[EWIF]\d{3,4} |[│╭╰|]|={5}|-{5}|\*{5}"
    r"|[A-Za-z_.]+(?:Error|Exception): "
    r"|(?:DEBUG|INFO|WARNING|ERROR)\b|wandb:|> |[\w.-]+ +\| |During handling|The above exception|\S+@\S+[:$#]|\$ |#"
)
"""What begins a line of its own: it continues no other."""
_ENDS = re.compile(r".*[│╮╯]\s*$|.*\d+%\||\s*[-=*#^~_ ]+$|(\S)\1{30}|.*[-=*#^~_]{30}$")
"""A box, a progress bar or a rule: it is as wide as the terminal by itself."""
_DIGITS = re.compile(r"\d+")
_MOST_COMPARED = 100  # lines of one length
_FRAME = re.compile(r'\s*File "[^"]+", line \d+, in [\w<>.]+$')


def joined(texts: Sequence[str]) -> list[tuple[int, str]]:
    """The lines with the parts of broken ones joined: the index of the first part, and the text."""
    width = _width(texts)
    found: list[tuple[int, str]] = []
    broken = False
    for index, text in enumerate(texts):
        if broken and not _starts(text, found[-1][1]):
            found[-1] = (found[-1][0], found[-1][1] + text)
        else:
            found.append((index, text))
        broken = len(text) == width and not _ENDS.match(text)
    return found


def _starts(text: str, before: str) -> bool:
    return bool(_STARTS.match(text)) or (text.startswith("  ") and bool(_FRAME.match(before)))


def _width(texts: Sequence[str]) -> int:
    """The terminal's width in characters; 0 if it broke no line."""
    by_length: dict[int, list[str]] = defaultdict(list)
    for text in texts:
        if len(text) >= _NARROWEST and not _ENDS.match(text):
            by_length[len(text)].append(text)
    longer = 0
    for length in sorted(by_length, reverse=True):
        alike = by_length[length]
        different = len({_DIGITS.sub("", text) for text in alike[:_MOST_COMPARED]})
        if len(alike) > longer and (different > 2 or length in _USUAL):
            return length
        longer += len(alike)
    return 0
