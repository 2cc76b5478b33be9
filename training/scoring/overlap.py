"""`python -m training.scoring.overlap`: counts evaluation rows that are in the training rows, entirely or in part.

Standard input has {"evaluation": SET, "training": [SET, ...], "rows": N}, a SET being [path, columns, name]. Counted are
rows whose text (prompt and answer) is that of a training row, rows whose prompt is, and rows that share 13 consecutive words with
one (Brown et al., "Language Models are Few-Shot Learners", 2020, appendix C), or 26 characters in scripts without spaces; `leaked`
are the numbers of all of these in their file, from 0. Case, white space, the encoding of accents (NFC) and the punctuation after a
word make no difference. Sequences that many evaluation rows share, such as a template, are ignored. Memory grows with the
evaluation rows only.
"""

import json
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import regex

from training.data.example import Example, answer_text
from training.data.rows import DataFile, read_files

WORDS, CHARACTERS = 13, 26
_COMMON_SHARE, _COMMON_ROWS = 0.05, 10  # a sequence in more of the evaluation rows is a template
_EXAMPLES = 5
_UNSPACED = (
    r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"  # scripts without spaces between words
)
_UNIT = regex.compile(
    rf"(?P<character>[{_UNSPACED}]\p{{M}}*)|[[\p{{L}}\p{{M}}\p{{N}}_]--[{_UNSPACED}]]+", regex.VERSION1
)


_AFTER_WORD = re.compile(r"(?<=[^\W\d_]{2})[.,;:!?\u2026\u3002\uff01\uff1f]+(?=\s|\Z)")  # but not of 5! or a != b


@dataclass
class Overlap:
    """The numbers of evaluation rows, and of those that training rows contain. `examples` are numbers of such rows, from 1."""

    rows: int = 0
    training_rows: int = 0
    equal: int = 0
    same_prompt: int = 0
    shared_words: int = 0
    words: int = WORDS
    examples: list[int] = field(default_factory=list)


@dataclass
class _Seen:
    """The evaluation rows by the hash of their text, of their prompt and of each of their sequences of words."""

    texts: dict[int, list[int]] = field(default_factory=dict)
    prompts: dict[int, list[int]] = field(default_factory=dict)
    sequences: dict[int, list[int]] = field(default_factory=dict)


def overlap(evaluation: Iterable[Example], training: Iterable[Example]) -> Overlap:
    """Counts the evaluation rows that training rows contain."""
    return overlapping(enumerate(evaluation), training)[0]


def overlapping(evaluation: Iterable[tuple[int, Example]], training: Iterable[Example]) -> tuple[Overlap, list[int]]:
    """The same, with the numbers of all of these rows; `evaluation` are rows with their numbers from 0."""
    found, seen, numbers = Overlap(), _Seen(), []
    for number, example in evaluation:
        numbers.append(number)
        prompt, whole = _texts(example)
        seen.texts.setdefault(_hash(whole), []).append(number)
        if prompt:
            seen.prompts.setdefault(_hash(prompt), []).append(number)
        for sequence in set(_sequences(whole)):
            seen.sequences.setdefault(sequence, []).append(number)
    found.rows = len(numbers)
    most = max(_COMMON_ROWS, _COMMON_SHARE * found.rows)
    seen.sequences = {key: rows for key, rows in seen.sequences.items() if len(rows) <= most}
    equal, prompts, shared = Counter[int](), Counter[int](), Counter[int]()
    for example in training:
        found.training_rows += 1
        prompt, whole = _texts(example)
        equal.update(seen.texts.get(_hash(whole), ()))
        prompts.update(seen.prompts.get(_hash(prompt), ()) if prompt else ())
        for sequence in _sequences(whole):
            shared.update(seen.sequences.get(sequence, ()))
    found.equal, found.same_prompt, found.shared_words = len(equal), len(prompts), len(shared)
    leaked = sorted(equal.keys() | prompts.keys() | shared.keys())
    found.examples = [number + 1 for number in leaked[:_EXAMPLES]]
    return found, leaked


def _texts(example: Example) -> tuple[str, str]:
    """The prompt, and prompt and answer, both normalized. The system prompt does not count."""
    if example.messages is None:
        turns = [example.prompt, example.answer]
    else:
        turns = [answer_text(turn) for turn in example.messages if turn["role"] != "system"]
    return _normal(turns[:-1]), _normal(turns)


def _normal(turns: list[str]) -> str:
    text = unicodedata.normalize("NFC", "\n".join(turns)).casefold()
    return " ".join(_AFTER_WORD.sub("", text).split())


def _sequences(text: str) -> Iterator[int]:
    """The hashes of the sequences of words; a sequence that is mostly characters of scripts without spaces is longer."""
    units = [(match[0], match["character"] is not None) for match in _UNIT.finditer(text)]
    words = [word for word, _ in units]
    for start in range(len(words) - WORDS + 1):
        characters = sum(is_character for _, is_character in units[start : start + WORDS])
        end = start + (CHARACTERS if characters > WORDS // 2 else WORDS)
        if end <= len(words):
            yield _hash(" ".join(words[start:end]))


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def _examples(sets: list[list[Any]], *, unwanted: bool) -> Iterator[tuple[int, Example]]:
    files = [DataFile(Path(path), columns, name) for path, columns, name in sets]
    rows = read_files(files, unwanted=unwanted)
    return ((number, example) for number, *_, example in rows if example is not None)


def main() -> None:
    """Prints the overlap as JSON."""
    asked = json.load(sys.stdin)
    # An answer that is unwanted is no row that an evaluation answers, but training has seen it.
    answered = islice(_examples([asked["evaluation"]], unwanted=False), asked["rows"])
    found, leaked = overlapping(answered, (example for _, example in _examples(asked["training"], unwanted=True)))
    print(json.dumps(vars(found) | {"leaked": leaked}))


if __name__ == "__main__":
    main()
