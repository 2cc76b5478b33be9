"""Greedy answers of vLLM to questions: the prompt tokens, end tokens and texts are those of `generate`."""

from collections.abc import Callable, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from training.trainer.answering import Question, end_tokens
from training.vllm.client import Client
from training.vllm.limits import Models, NotLoaded, check
from training.vllm.models import base_config, generation_config
from training.vllm.server import serving

_BATCH_ROWS = 256
"""Rows of a request; vLLM answers as many of them at a time as its memory has room for."""


def answers(
    models: Models,
    names: Sequence[str],
    questions: Sequence[Question],
    tokenizer: PreTrainedTokenizerBase,
    longest: int,
    step: Callable[[int], None],
) -> list[list[str]]:
    """Returns the answers of each of the named models, of at most `longest` tokens; calls `step` with the rows of each batch.

    Raises:
        NotLoaded: vLLM cannot load the models, or the longest prompt and its answer do not fit in their context.
        VllmError: it ended while it answered, or refused a request.
    """
    config = base_config(models)
    check(models, config, len(tokenizer))
    room = _room(config, models, questions, longest)
    ends = end_tokens(generation_config(models, config), tokenizer)
    with serving(models, room, lambda: step(0)) as server:
        return [_of_model(server, name, questions, tokenizer, longest, ends, step) for name in names]


def _room(config: Any, models: Models, questions: Sequence[Question], longest: int) -> int:
    row = max(questions, key=lambda question: len(question.tokens))
    room = len(row.tokens) + longest
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    if context and room > context:
        message = f"does not answer row {row.row + 1:,}: its prompt of {len(row.tokens):,} tokens and an answer of {longest:,} "
        message += f"exceed the model's context of {context:,}."
        raise NotLoaded("vllm", models.base, message, f"Lower max_new_tokens by {room - context:,}.")
    return room


def _of_model(
    server: Client,
    name: str,
    questions: Sequence[Question],
    tokenizer: PreTrainedTokenizerBase,
    longest: int,
    ends: list[int],
    step: Callable[[int], None],
) -> list[str]:
    # Its own end tokens are those of the tokenizer alone.
    body = {"model": name, "max_tokens": longest, "temperature": 0, "ignore_eos": True, "stop_token_ids": ends}
    texts: list[str] = []
    for start in range(0, len(questions), _BATCH_ROWS):
        batch = questions[start : start + _BATCH_ROWS]
        prompts = [question.tokens for question in batch]
        tokens = server.complete(body | {"prompt": prompts, "return_token_ids": True})
        texts += [text.strip() for text in tokenizer.batch_decode(tokens, skip_special_tokens=True)]
        step(len(batch))
    return texts
