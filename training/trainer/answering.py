"""Held-out rows as questions, greedy answers by the forward pass alone (which works on every strategy), and their scores."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist
from transformers import GenerationConfig, PreTrainedTokenizerBase

from training.batches.layout import evaluating
from training.chat.rendering_settings import ChatSettings
from training.config.name_values import as_names
from training.config.run_config import RunConfig
from training.config.task import StoredText
from training.data.example import Example, prompt_text
from training.scoring.text_scores import score
from training.tokens.encoding import Encoder
from training.tokens.parts import PartRenderer
from training.tokens.rendering import Renderer
from training.trainer.generation import continued


@dataclass(frozen=True)
class Question:
    """A held-out row: its index in the file, the prompt as text (with its chat template) and tokens, the expected answer, and what
    rewards need: the `plain` prompt, the columns and the example."""

    row: int
    prompt: str
    tokens: list[int]
    expected: str
    plain: str = ""
    columns: dict[str, Any] = field(default_factory=dict)
    example: Example | None = None


def questions(
    examples: Iterator[tuple[int, Example]], config: RunConfig, tokenizer: PreTrainedTokenizerBase, most: int
) -> list[Question]:
    """Returns the first `most` rows that have a prompt, with the same prompt tokens as in training. Those of prompts alone expect
    an empty answer."""
    result: list[Question] = []
    chat = ChatSettings.of(config)
    renderer, encoder = Renderer(tokenizer, chat), Encoder(tokenizer)
    source = PartRenderer(tokenizer, StoredText.SOURCE, chat) if config.task.traits.has_encoder else None
    for row, example in examples:
        prompt, expected = renderer.question(example)
        if prompt:
            tokens = encoder.whole(source.render(example)) if source else encoder.prompt(renderer.last_turn(example))
            result.append(Question(row, prompt, tokens, expected, prompt_text(example)))
        if len(result) == most:
            break
    return result


def asked_by(
    setting: str,
    examples: Iterator[tuple[int, Example]],
    config: RunConfig,
    tokenizer: PreTrainedTokenizerBase,
    warn: Callable[[str], None],
) -> list[Question]:
    """Returns the rows that `answer_rows` or `eval_answers` asks for; warns if no row has a prompt, as those of whole texts."""
    most = getattr(config, setting)
    result = questions(examples, config, tokenizer, most) if most else []
    if most and not result:
        warn(f"No held-out row has a prompt to answer, so {setting} has no effect.")
    return result


def end_tokens(generation: GenerationConfig, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Returns the tokens that end an answer of the model with this generation configuration."""
    own = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return sorted({*configured_ends(generation), *own})


def configured_ends(generation: GenerationConfig) -> list[int]:
    """Returns the end tokens that a generation configuration names: one, several or none."""
    ends = generation.eos_token_id
    return [] if ends is None else [ends] if isinstance(ends, int) else list(ends)


def greedy(
    model: Any, prompts: Sequence[Sequence[int]], longest: int, ends: Sequence[int], padding: int, device: torch.device
) -> list[list[int]]:
    """Returns the most likely tokens after each prompt, up to an end token, which is omitted, or `longest`. A collective, see
    `continued`."""
    rows = continued(model, prompts, longest, ends, padding, device, lambda logits, _: logits.argmax(dim=-1))
    return [[token for token in row if token not in ends] for row in rows]


class SampleAnswers:
    """The held-out rows that are answered, the same on every rank."""

    def __init__(
        self,
        config: RunConfig,
        held_out: Iterator[tuple[int, Example]],
        tokenizer: PreTrainedTokenizerBase,
        warn: Callable[[str], None],
    ) -> None:
        self._config, self._tokenizer = config, tokenizer
        self._asked = asked_by("eval_answers", held_out, config, tokenizer, warn)

    def due(self, number: int) -> bool:
        """True if the rows are answered at this evaluation: every `eval_answers_every`-th; the first is number 1."""
        return bool(self._asked) and number % self._config.eval_answers_every == 0

    def scores(self, model: Any, device: torch.device, check: Callable[[], None]) -> dict[str, float]:
        """Returns the means of the scores by name, as eval_exact_match. A collective; the ranks share the rows.

        Calls `check` before each batch.
        """
        ranks, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
        mine, most = self._asked[rank::ranks], -(-len(self._asked) // ranks)
        # A rank with fewer rows repeats one, so that all take as many forward passes.
        asked, size = mine + self._asked[:1] * (most - len(mine)), self._config.micro_batch_size
        scores: list[dict[str, float]] = []
        with evaluating(model):
            for start in range(0, most, size):
                check()
                scores += self._answered(model, asked[start : start + size], device)
        every: list[Any] = [scores[: len(mine)]] * ranks
        if ranks > 1:
            dist.all_gather_object(every, scores[: len(mine)])
        names = as_names(self._config.eval_metrics)
        return {f"eval_{name}": fmean(row[name] for part in every for row in part) for name in names}

    def _answered(self, model: Any, part: list[Question], device: torch.device) -> list[dict[str, float]]:
        """The scores of the answers to some questions."""
        ends, padding = end_tokens(model.generation_config, self._tokenizer), self._tokenizer.pad_token_id
        prompts = [question.tokens for question in part]
        tokens = greedy(model, prompts, self._config.max_new_tokens, ends, padding, device)
        texts = self._tokenizer.batch_decode(tokens, skip_special_tokens=True)
        pairs = [(text.strip(), question.expected.strip()) for text, question in zip(texts, part, strict=True)]
        return [{"exact_match": float(answer == expected)} | score(answer, expected) for answer, expected in pairs]
