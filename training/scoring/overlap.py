"""`python -m training.scoring.overlap`: counts evaluation rows that are in the training rows, entirely or in part.

Standard input has {"evaluation": [SET, ...], "training": [SET, ...], "rows": N}, a SET being [path, columns, name]. A row is its
prompt and answer as words in lower case. Counted are rows that are equal to a training row, rows whose prompt is that of a training
row, and rows that share 13 consecutive words with one (Brown et al., "Language Models are Few-Shot Learners", 2020, appendix C).
Sequences of words that many evaluation rows share, such as a template, are ignored. Memory grows with the evaluation rows only.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

from training.data.example import Example
from training.data.rows import DataFile, read_files

WORDS = 13
_COMMON_SHARE, _COMMON_ROWS = 0.05, 10  # a sequence in more of the evaluation rows is a template
_EXAMPLES = 5
_WORD = re.compile(r"\w+")


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
    found, seen, numbers = Overlap(), _Seen(), []
    for number, example in enumerate(evaluation, 1):
        numbers.append(number)
        prompt, whole = _words(example)
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
        prompt, whole = _words(example)
        equal.update(seen.texts.get(_hash(whole), ()))
        prompts.update(seen.prompts.get(_hash(prompt), ()) if prompt else ())
        for sequence in _sequences(whole):
            shared.update(seen.sequences.get(sequence, ()))
    found.equal, found.same_prompt, found.shared_words = len(equal), len(prompts), len(shared)
    found.examples = sorted(equal.keys() | prompts.keys() | shared.keys())[:_EXAMPLES]
    return found


def _words(example: Example) -> tuple[list[str], list[str]]:
    """The words of the prompt, and those of prompt and answer. The system prompt does not count."""
    if example.messages is None:
        prompt = _WORD.findall(example.prompt.lower())
        return prompt, prompt + _WORD.findall(example.answer.lower())
    turns = [str(turn["content"]) for turn in example.messages if turn["role"] != "system"]
    prompt = _WORD.findall(" ".join(turns[:-1]).lower())
    return prompt, prompt + _WORD.findall(turns[-1].lower() if turns else "")


def _sequences(words: list[str]) -> Iterator[int]:
    for start in range(len(words) - WORDS + 1):
        yield _hash(words[start : start + WORDS])


def _hash(words: list[str]) -> int:
    return int.from_bytes(blake2b(" ".join(words).encode(), digest_size=8).digest(), "little")


def _examples(sets: list[list[Any]]) -> Iterator[Example]:
    files = [DataFile(Path(path), columns, name) for path, columns, name in sets]
    return (example for *_, example in read_files(files, unwanted=True) if example is not None)


def main() -> None:
    """Prints the overlap as JSON."""
    asked = json.load(sys.stdin)
    found = overlap(islice(_examples(asked["evaluation"]), asked["rows"]), _examples(asked["training"]))
    print(json.dumps(vars(found)))


if __name__ == "__main__":
    main()
