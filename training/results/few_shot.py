"""Rows of the training data as examples in a prompt: what the base model can do without training."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from training.data.example import Example, asked
from training.data.rows import DataFile, read_files
from training.errors import UserError
from training.scoring.request import EvaluationRequest


def shots(request: EvaluationRequest) -> list[Example]:
    """The first `shots` answered rows of the training data. Raises UserError if it has fewer."""
    if not request.shots:
        return []
    files = [DataFile(Path(path), columns, name) for path, columns, name in request.training]
    found: list[Example] = []
    for *_, example in read_files(files):
        if example and example.answered and (example.messages or example.prompt):
            found.append(example)
        if len(found) == request.shots:
            return found
    fix = f"Give at most {len(found)}."
    raise UserError("shots", request.shots, f"exceeds the {len(found)} training rows with a prompt and an answer.", fix)


def with_shots(example: Example, before: Sequence[Example]) -> Example:
    """The example after others: of a chat their turns, after its own system message; of texts with empty lines between them."""
    if not before:
        return example
    if example.messages is None:
        texts = [f"{one.prompt}{one.answer}" for one in before if one.messages is None]
        return replace(example, prompt="\n\n".join([*texts, example.prompt]))
    own = example.messages
    system = [turn for turn in own[:1] if turn["role"] == "system"]
    turns = [turn for one in before for turn in _turns(one)]
    return replace(example, messages=[*system, *turns, *own[len(system) :]])


def _turns(example: Example) -> list[dict[str, object]]:
    """The last question of a chat and its answer; of texts both as messages."""
    if example.messages is None:
        return [{"role": "user", "content": example.prompt}, {"role": "assistant", "content": example.answer}]
    question = asked(example)
    return example.messages[len(question) - 1 : len(question) + 1]
