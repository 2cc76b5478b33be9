"""Joins lines that a terminal broke at its width, in the middle of words."""

import re
from collections import Counter
from collections.abc import Sequence

_NARROWEST = 60  # characters
_USUAL = (80, 100, 120, 128, 132, 140, 150, 160, 180, 200, 240)
_STARTS = re.compile(
    r"\s*$|\s+(?:File \"|\^+|~+\^|\.\.\.|raise |return |self\.)|Traceback \(|\[?(?:rank|default)\d+\]|\[rank: ?\d|\[\d+,\d+\]<std"
    r"|\[?\d{4}-\d\d-\d\d|\[?\d\d:\d\d:\d\d|\(\w[\w.:]* pid=|\[?[EWIF]\d{3,4} |[│╭╰|]|={5}|-{5}|\*{5}"
    r"|[A-Za-z_.]+(?:Error|Exception): "
    r"|(?:DEBUG|INFO|WARNING|ERROR)\b|wandb:|> |[\w.-]+ +\| |During handling|The above exception|\S+@\S+[:$#]|\$ |#"
)
"""What begins a line of its own: it continues no other."""
_ENDS = re.compile(r".*[│╮╯]\s*$|.*\d+%\||\s*[-=*#^~_ ]+$|(\S)\1{30}")
"""A box, a progress bar or a rule: it is as wide as the terminal by itself."""
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
    lengths = Counter(len(text) for text in texts if len(text) >= _NARROWEST and not _ENDS.match(text))
    longer = 0
    for length in sorted(lengths, reverse=True):
        different = len({re.sub(r"\d+", "", text) for text in texts if len(text) == length})
        if lengths[length] > longer and (different > 2 or (different > 0 and length in _USUAL)):
            return length
        longer += lengths[length]
    return 0
