"""Answers held-out rows with the base model and with the saved, fine-tuned one, and scores the answers."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from training.config.run_config import RunConfig
from training.errors import UserError
from training.models.loading import load_model, model_class
from training.models.plain_decoding import decoding
from training.results.by_vllm import answers as vllm_answers
from training.results.carded import card
from training.scoring import paired
from training.scoring.fingerprints import of_built_in
from training.scoring.request import CARD, RESULT, Decoding
from training.scoring.text_scores import SCORES, score
from training.trainer.answering import Question, end_tokens
from training.vllm.client import VllmError
from training.vllm.limits import NotLoaded
from training.vllm.models import models_of
from training.vllm.server import command

_BATCH_ROWS = 32


@dataclass(frozen=True)
class Compared:
    """The questions from `data` (name, SHA-256), and the run whose base model and whose fine-tuned weights (from the folder
    `tuned`) answer them."""

    questions: list[Question]
    config: RunConfig
    tuned: Path
    tokenizer: PreTrainedTokenizerBase
    dtype: torch.dtype
    data: tuple[str, str] = ("", "")


def compare(
    item: Compared, device: torch.device, progress: Callable[[int, int], None], warn: Callable[[str], None]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Generates greedy answers before and after fine-tuning. Returns the mean scores (0 to 1) and one record per row.

    The scores are those of the files users download. If transformers answers in place of vLLM, it calls `warn` with the reason.
    """
    done, total = 0, 2 * len(item.questions)

    def step(count: int) -> None:
        nonlocal done
        done += count
        progress(min(done, total), total)

    by_vllm = _by_vllm(item, step, warn)
    before, after = by_vllm or _by_transformers(item, device, step)
    rows = [_record(*row) for row in zip(item.questions, before, after, strict=True)]
    summary = {
        "rows": len(rows),
        "exact_match_before": sum(row["match_before"] for row in rows) / len(rows),
        "exact_match_after": sum(row["match_after"] for row in rows) / len(rows),
        **means(rows, "before"),
        **means(rows, "after"),
        "changes": changes(rows),
        CARD: _card(item, "vllm" if by_vllm else ""),
    }
    return summary, rows


def _card(item: Compared, engine: str) -> dict[str, Any]:
    found = card(
        item.config, item.tokenizer, item.dtype, data=(*item.data, None), rows=len(item.questions),
        longest=item.config.max_new_tokens, source=RESULT, weights=item.tuned, engine=engine,
    )  # fmt: skip
    return found.model_copy(update={"metrics": of_built_in(("exact_match", *SCORES))}).document()


def _by_transformers(item: Compared, device: torch.device, step: Callable[[int], None]) -> list[list[str]]:
    config, tokenizer = item.config, item.tokenizer
    model = load_model(config, item.dtype, len(tokenizer)).to(device).eval()
    if config.method.adapts:
        model = PeftModel.from_pretrained(model, str(item.tuned)).eval()
    with model.disable_adapter() if config.method.adapts else nullcontext():
        before = answer_all(model, item.questions, tokenizer, config.max_new_tokens, step)
    if not config.method.adapts:
        del model
        model = model_class(config.task).from_pretrained(str(item.tuned), dtype=item.dtype).to(device).eval()
    return [before, answer_all(model, item.questions, tokenizer, config.max_new_tokens, step)]


def _by_vllm(item: Compared, step: Callable[[int], None], warn: Callable[[str], None]) -> list[list[str]]:
    """Empty if vLLM does not answer. One process answers with and without an adapter; of two whole models, one after the other."""
    if not command():
        return []
    after = models_of(item.config, item.tuned, item.dtype)
    processes = [after] if after.adapters else [models_of(item.config, None, item.dtype), after]
    answers: list[list[str]] = []
    try:
        for models in processes:
            names, longest = [models.name, *models.adapters], item.config.max_new_tokens
            answers += vllm_answers(models, names, item.questions, item.tokenizer, longest, step)
    except (NotLoaded, VllmError) as reason:  # the run has its result, and must not fail for this
        warn(f"transformers answers the held-out rows: {reason}")
        return []
    return answers


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


def answer_all(
    model: PreTrainedModel,
    questions: list[Question],
    tokenizer: PreTrainedTokenizerBase,
    longest: int,
    step: Callable[[int], None],
    kind: Decoding = Decoding.GREEDY,
) -> list[str]:
    """Returns the answer to each question, of at most `longest` tokens; calls `step` with the rows of each batch."""
    answers: list[str] = []
    for start in range(0, len(questions), _BATCH_ROWS):
        batch = questions[start : start + _BATCH_ROWS]
        answers += _answer(model, [question.tokens for question in batch], tokenizer, longest, kind)
        step(len(batch))
    return answers


@torch.inference_mode()
def _answer(
    model: PreTrainedModel, prompts: list[list[int]], tokenizer: PreTrainedTokenizerBase, longest: int, kind: Decoding
) -> list[str]:
    inputs = tokenizer.pad({"input_ids": prompts}, return_tensors="pt", padding=True, padding_side="left")
    inputs = inputs.to(model.device)
    with decoding(model, kind) as arguments:
        output = model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            max_new_tokens=longest,
            **arguments,
            use_cache=True,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=end_tokens(model.generation_config, tokenizer),
        )
    # The output of an encoder-decoder begins with its start token, that of a decoder with the prompt.
    new = output[:, 1 if model.config.is_encoder_decoder else inputs["input_ids"].shape[1] :]
    return [text.strip() for text in tokenizer.batch_decode(new, skip_special_tokens=True)]


def changes(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns for each score whether the answers are better after training than before (training/scoring/paired.py)."""
    names = {"exact_match": "match"} | {name: name for name in SCORES}
    return {
        name: paired.compare([row[f"{key}_before"] for row in rows], [row[f"{key}_after"] for row in rows]).document()
        for name, key in names.items()
    }


def means(rows: list[dict[str, Any]], when: str) -> dict[str, float]:
    """Returns the mean of each score over all rows, `when` is "before" or "after" training."""
    return {f"{name}_{when}": fmean(row[f"{name}_{when}"] for row in rows) for name in SCORES}


@torch.inference_mode()
def answer_with_classes(
    model: PreTrainedModel,
    questions: list[Question],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    classes: tuple[str, ...],
    progress: Callable[[str, int, int], None],
) -> list[str]:
    """Returns the most probable class of each row, of its first `max_length` tokens as in training. Raises UserError if the
    classes are unknown, since the run has not finished."""
    if not classes:
        raise UserError("run", None, "has not saved its classes yet.", "Finish the run, then evaluate it.")
    answers: list[str] = []
    for start in range(0, len(questions), _BATCH_ROWS):
        batch = [question.tokens[:max_length] for question in questions[start : start + _BATCH_ROWS]]
        inputs = tokenizer.pad({"input_ids": batch}, return_tensors="pt", padding=True, padding_side="right")
        inputs = inputs.to(model.device)
        logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
        answers += [classes[index] for index in logits.argmax(dim=-1).tolist()]
        progress("answering", len(answers), len(questions))
    return answers
