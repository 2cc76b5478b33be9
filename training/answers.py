"""Held-out rows answered by the base model and by the tuned one, from the files that were saved."""

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from training.config import RunConfig, Task
from training.encoding import Encoder
from training.methods import template_arguments
from training.model import load_model, model_class
from training.parts import Part, PartRenderer
from training.rendering import Renderer
from training.scores import means, score
from training.shapes import Example

_BATCH_ROWS = 32


@dataclass(frozen=True)
class Question:
    """A held-out row: its place in its file, what the model is given, as text and as tokens, and what it should say."""

    row: int
    prompt: str
    tokens: list[int]
    expected: str


def questions(
    examples: Iterator[tuple[int, Example]], config: RunConfig, tokenizer: PreTrainedTokenizerBase
) -> list[Question]:
    """The first `answer_rows` rows that have a prompt to answer, as the very tokens that training sees before the answer."""
    found: list[Question] = []
    arguments = template_arguments(config.chat_template_kwargs)
    renderer, encoder = Renderer(tokenizer, arguments), Encoder(tokenizer)
    source = PartRenderer(tokenizer, Part.SOURCE, arguments) if config.task is Task.SEQ2SEQ else None
    for row, example in examples:
        prompt, expected = renderer.question(example)
        if prompt:
            tokens = encoder.whole(source.render(example)) if source else encoder.prompt(renderer.last_turn(example))
            found.append(Question(row, prompt, tokens, expected))
        if len(found) == config.answer_rows:
            break
    return found


def compare(
    asked: list[Question],
    config: RunConfig,
    tuned: Path,
    tokenizer: PreTrainedTokenizerBase,
    dtype: torch.dtype,
    device: torch.device,
    progress: Callable[[int, int], None],
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Greedy answers before and after tuning: the summary with exact match, F1 and ROUGE as shares, and one record per row.

    The tuned weights are read from the folder `tuned`, so that what is measured is what can be downloaded.
    """
    done = 0

    def step(count: int) -> None:
        nonlocal done
        done += count
        progress(done, 2 * len(asked))

    model = load_model(config, dtype, len(tokenizer)).to(device).eval()
    if config.method.adapts:
        model = PeftModel.from_pretrained(model, str(tuned)).eval()
    with model.disable_adapter() if config.method.adapts else nullcontext():
        before = _answer_all(model, asked, tokenizer, config.max_new_tokens, step)
    if not config.method.adapts:
        del model
        model = model_class(config.task).from_pretrained(str(tuned), dtype=dtype).to(device).eval()
    after = _answer_all(model, asked, tokenizer, config.max_new_tokens, step)
    rows = [_record(*row) for row in zip(asked, before, after, strict=True)]
    summary = {
        "rows": len(rows),
        "exact_match_before": sum(row["match_before"] for row in rows) / len(rows),
        "exact_match_after": sum(row["match_after"] for row in rows) / len(rows),
        **means(rows, "before"),
        **means(rows, "after"),
    }
    return summary, rows


def write_records(rows: list[dict[str, Any]], path: Path) -> None:
    """One JSON object a line."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def _record(question: Question, before: str, after: str) -> dict[str, Any]:
    expected = question.expected.strip()
    return {
        "row": question.row,
        "prompt": question.prompt,
        "expected": expected,
        "before": before,
        "after": after,
        "match_before": before == expected,
        "match_after": after == expected,
        **{f"{name}_before": value for name, value in score(before, expected).items()},
        **{f"{name}_after": value for name, value in score(after, expected).items()},
    }


def _answer_all(
    model: PreTrainedModel,
    asked: list[Question],
    tokenizer: PreTrainedTokenizerBase,
    longest: int,
    step: Callable[[int], None],
) -> list[str]:
    answers: list[str] = []
    for start in range(0, len(asked), _BATCH_ROWS):
        batch = asked[start : start + _BATCH_ROWS]
        answers += _answer(model, [question.tokens for question in batch], tokenizer, longest)
        step(len(batch))
    return answers


@torch.inference_mode()
def _answer(
    model: PreTrainedModel, prompts: list[list[int]], tokenizer: PreTrainedTokenizerBase, longest: int
) -> list[str]:
    inputs = tokenizer.pad({"input_ids": prompts}, return_tensors="pt", padding=True, padding_side="left")
    inputs = inputs.to(model.device)
    output = model.generate(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        max_new_tokens=longest,
        do_sample=False,
        use_cache=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=_end_tokens(model, tokenizer),
    )
    # A decoder of its own begins with its start token; otherwise the prompt comes first.
    new = output[:, 1 if model.config.is_encoder_decoder else inputs["input_ids"].shape[1] :]
    return [text.strip() for text in tokenizer.batch_decode(new, skip_special_tokens=True)]


def _end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    configured = model.generation_config.eos_token_id
    ends = configured if isinstance(configured, list) else [configured]
    return sorted({end for end in (*ends, tokenizer.eos_token_id) if end is not None})
