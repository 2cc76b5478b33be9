"""The scripts of texts, by Unicode block. A tokenizer with few tokens of a script splits its words into single bytes."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from training.tokens.order import Integers

# First character, last character, script. Other characters (digits, punctuation, spaces) have no script.
_BLOCKS = [
    (0x0041, 0x005A, "Latin"),
    (0x0061, 0x007A, "Latin"),
    (0x00C0, 0x024F, "Latin"),
    (0x1E00, 0x1EFF, "Latin"),
    (0x0370, 0x03FF, "Greek"),
    (0x1F00, 0x1FFF, "Greek"),
    (0x0400, 0x052F, "Cyrillic"),
    (0x0530, 0x058F, "Armenian"),
    (0x0590, 0x05FF, "Hebrew"),
    (0x0600, 0x06FF, "Arabic"),
    (0x0750, 0x077F, "Arabic"),
    (0xFB50, 0xFDFF, "Arabic"),
    (0xFE70, 0xFEFF, "Arabic"),
    (0x0900, 0x097F, "Devanagari"),
    (0x0980, 0x09FF, "Bengali"),
    (0x0A00, 0x0A7F, "Gurmukhi"),
    (0x0A80, 0x0AFF, "Gujarati"),
    (0x0B80, 0x0BFF, "Tamil"),
    (0x0C00, 0x0C7F, "Telugu"),
    (0x0C80, 0x0CFF, "Kannada"),
    (0x0D00, 0x0D7F, "Malayalam"),
    (0x0D80, 0x0DFF, "Sinhala"),
    (0x0E00, 0x0E7F, "Thai"),
    (0x0E80, 0x0EFF, "Lao"),
    (0x0F00, 0x0FFF, "Tibetan"),
    (0x1000, 0x109F, "Burmese"),
    (0x10A0, 0x10FF, "Georgian"),
    (0x1100, 0x11FF, "Hangul"),
    (0x3130, 0x318F, "Hangul"),
    (0xAC00, 0xD7AF, "Hangul"),
    (0x1200, 0x139F, "Ethiopic"),
    (0x1780, 0x17FF, "Khmer"),
    (0x3040, 0x30FF, "Kana"),
    (0x31F0, 0x31FF, "Kana"),
    (0x3400, 0x4DBF, "Han"),
    (0x4E00, 0x9FFF, "Han"),
    (0xF900, 0xFAFF, "Han"),
    (0x20000, 0x323AF, "Han"),
    (0x2190, 0x2BFF, "Symbols"),
    (0x1F000, 0x1FAFF, "Emoji"),
]
NO_SCRIPT = "Digits and signs"
SCRIPTS = [NO_SCRIPT, *dict.fromkeys(name for _, _, name in _BLOCKS)]


def _table() -> NDArray[np.uint8]:
    table = np.zeros(0x110000, np.uint8)
    for first, last, name in _BLOCKS:
        table[first : last + 1] = SCRIPTS.index(name)
    return table


_TABLE = _table()


def main_scripts(texts: Sequence[str]) -> Integers:
    """The most frequent script (an index into SCRIPTS) of each text."""
    sizes = np.fromiter((len(text) for text in texts), np.intp, len(texts))
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    rows = np.repeat(np.arange(len(texts)), sizes)
    cells = rows * len(SCRIPTS) + _TABLE[codes]
    counts = np.bincount(cells, minlength=len(texts) * len(SCRIPTS)).reshape(len(texts), len(SCRIPTS))
    counts[:, 0] = 0  # ignores digits and signs; a text of these only has index 0
    main: Integers = counts.argmax(axis=1)
    return main
