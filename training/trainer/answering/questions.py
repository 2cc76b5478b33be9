"""Rows as questions: prompt tokens as in training, expected answers, and scores of answers."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from transformers import GenerationConfig, PreTrainedTokenizerBase

from training.chat.settings import ChatSettings
from training.config.choices import Task
from training.config.run_config import RunConfig
from training.data.example import Example
from training.tokens.encoding import Encoder
from training.tokens.parts import PartRenderer, StoredText
from training.tokens.rendering import Renderer

_WORD = re.compile(r"[^\W_]+")  # of any script; for Latin letters the same words as ROUGE's own tokenizer
_ROUGE = ("rouge1", "rouge2", "rougeL")  # rougeLsum needs a sentence splitter, which is a download
SCORES = ("f1", *_ROUGE)


@dataclass(frozen=True)
class Question:
    """A held-out row: its index in the file, the prompt as text and tokens, and the expected answer."""

    row: int
    prompt: str
    tokens: list[int]
    expected: str


def questions(
    examples: Iterator[tuple[int, Example]], config: RunConfig, tokenizer: PreTrainedTokenizerBase, most: int
) -> list[Question]:
    """Returns the first `most` rows that have a prompt, with the same prompt tokens as in training."""
    result: list[Question] = []
    chat = ChatSettings.of(config)
    renderer, encoder = Renderer(tokenizer, chat), Encoder(tokenizer)
    source = PartRenderer(tokenizer, StoredText.SOURCE, chat) if config.task is Task.SEQ2SEQ else None
    for row, example in examples:
        prompt, expected = renderer.question(example)
        if prompt:
            tokens = encoder.whole(source.render(example)) if source else encoder.prompt(renderer.last_turn(example))
            result.append(Question(row, prompt, tokens, expected))
        if len(result) == most:
            break
    return result


def score(answer: str, expected: str) -> dict[str, float]:
    """Returns F1 and the F-measures of ROUGE-1, -2 and -L of an answer, by name."""
    from torchmetrics.functional.text import rouge_score, squad

    target = {"answers": {"answer_start": [0], "text": [expected]}, "id": "0"}
    f1 = float(squad([{"prediction_text": answer, "id": "0"}], [target])["f1"]) / 100
    rouge = rouge_score(answer, expected, tokenizer=_WORD.findall, normalizer=str.lower, rouge_keys=_ROUGE)
    return {"f1": f1} | {name: float(rouge[f"{name}_fmeasure"]) for name in _ROUGE}


def end_tokens(generation: GenerationConfig, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Returns the tokens that end an answer of the model with this generation configuration."""
    own = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return sorted({*configured_ends(generation), *own})


def configured_ends(generation: GenerationConfig) -> list[int]:
    """Returns the end tokens that a generation configuration names: one, several or none."""
    ends = generation.eos_token_id
    return [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
