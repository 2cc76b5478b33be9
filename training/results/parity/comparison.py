"""Compares one form of a result with the reference, row by row."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean
from typing import Any

import numpy as np

from training.errors import UserError
from training.results.parity.forms import Answered, ResultForm
from training.results.parity.reference import Reference, ReferencePrompt


@dataclass(frozen=True)
class Row:
    """One row in one form; `difference` is the largest of the logits after the prompt, `loss` that of the row's answer,
    `own_answer` that with the model's own generation configuration, None if it is not compared."""

    prompt: ReferencePrompt
    ids: list[int]
    answer: list[int]
    difference: float | None
    loss: float | None
    own_answer: list[int] | None = None

    @property
    def ids_equal(self) -> bool:
        return self.ids == self.prompt.prompt_ids

    @property
    def answer_equal(self) -> bool:
        return self.answer == self.prompt.answer

    @property
    def own_equal(self) -> bool:
        return self.own_answer is None or self.own_answer == self.prompt.own_answer


def compare(reference: Reference, form: ResultForm) -> list[Row]:
    """Renders and answers every prompt of the reference. Answers are made from the tokens that training saw. Raises UserError if
    its logits are not finite."""
    rows = []
    for index, prompt in enumerate(reference.prompts):
        ids = form.prompt_ids(prompt, reference.template_arguments)
        answer = form.answer(prompt, reference.max_new_tokens)
        own = None if prompt.own_answer is None else form.own_answer(prompt, reference.max_new_tokens)
        loss = form.loss(prompt) if prompt.expected else None
        rows.append(Row(prompt, ids, answer.tokens, _difference(reference, index, answer), loss, own))
    return rows


def _difference(reference: Reference, index: int, answer: Answered) -> float | None:
    """The largest difference of the logits, or that of the first token's log probability."""
    if reference.logits is None:
        return None
    known = reference.logits
    tokens, wanted = known.tokens[index], known.values[index]
    if answer.logits is not None:
        if not np.isfinite(answer.logits[tokens]).all():
            raise UserError("form", None, "answers with logits that are NaN or infinite.", "Use an earlier checkpoint.")
        return float(np.abs(wanted - answer.logits[tokens]).max())
    if answer.logprob is None or not answer.tokens:
        return None
    place = np.flatnonzero(tokens == answer.tokens[0])
    return abs(float(wanted[place[0]] - known.normalizers[index]) - answer.logprob) if len(place) else None


def document(name: str, rows: list[Row], reference: Reference, decode: Any, *, lossy: bool) -> dict[str, Any]:
    """What `lathe verify --json` prints of a form; `decode` turns tokens into text. `lossy`: it rounds weights by intent."""
    differences = [row.difference for row in rows if row.difference is not None]
    prompts, answers = all(row.ids_equal for row in rows), all(row.answer_equal and row.own_equal for row in rows)
    own = [row.own_equal for row in rows if row.own_answer is not None]
    figures = {"max_logit_difference": max(differences, default=None), **_quality(rows, reference)}
    first = next((row for row in rows if not (row.ids_equal and row.answer_equal and row.own_equal)), None)
    return {
        "form": name,
        "rows": len(rows),
        "equal": prompts and (lossy or ((answers or not reference.exact) and _within_tolerance(figures, reference))),
        "prompt_ids_equal": prompts,
        "answers_equal": answers,
        "equal_answers": sum(row.answer_equal for row in rows),
        "own_answers": len(own),
        "equal_own_answers": sum(own),
        **figures,
        "lossy": lossy,
        "first_difference": first and _told(first, decode, reference.classes),
    }


def tolerance(reference: Reference) -> dict[str, float]:
    """How far a form may be from the trained model: logits, as a share of the largest, and the mean loss of the answers, in nats.

    In 16 bits two orders of the same sums differ by some roundings of 2**-8, in fp32 of 2**-24. Answers must be the same in fp32
    only: in 16 bits the most probable token is often a matter of the last bit.
    """
    return {"logits": 0.01, "loss": 0.005} if reference.exact else {"logits": 0.1, "loss": 0.05}


def _within_tolerance(figures: dict[str, Any], reference: Reference) -> bool:
    allowed, logits = tolerance(reference), figures["max_logit_difference"]
    if logits is not None and reference.logits is not None:
        largest = float(np.abs(reference.logits.values).max())
        if logits > allowed["logits"] * max(largest, 1.0):
            return False
    here, lost = figures["perplexity"], figures["perplexity_loss"]
    return here is None or lost is None or abs(log(here / (here - lost))) <= allowed["loss"]


def _quality(rows: list[Row], reference: Reference) -> dict[str, Any]:
    """Perplexity and exact match against the rows' own answers, and what they lose against the trained model."""
    here, trained = perplexity([row.loss for row in rows]), perplexity([row.prompt.loss for row in rows])
    matches = sum(_matches(row.answer, row.prompt, reference) for row in rows)
    return {
        "perplexity": here,
        "perplexity_loss": None if here is None or trained is None else here - trained,
        "exact_match": matches,
        "exact_match_loss": exact_match(reference) - matches,
    }


def exact_match(reference: Reference) -> int:
    """The rows that the trained model answers as the row itself does."""
    return sum(_matches(prompt.answer, prompt, reference) for prompt in reference.prompts)


def _matches(answer: list[int], prompt: ReferencePrompt, reference: Reference) -> bool:
    """True if the tokens are those of the row's own answer, as far as an answer may be long."""
    return bool(prompt.expected) and answer == prompt.expected[: reference.max_new_tokens]


def perplexity(losses: Sequence[float | None]) -> float | None:
    """e to the mean of the losses of rows; None without any."""
    known = [loss for loss in losses if loss is not None]
    return exp(fmean(known)) if known else None


def _told(row: Row, decode: Any, classes: Sequence[str]) -> dict[str, Any]:
    """The first row that differs: where, and the texts, or the classes, on both sides."""
    what, trained, here = "answer", row.prompt.answer, row.answer
    if row.answer_equal and not row.own_equal:
        what, trained, here = "answer by generation_config.json", row.prompt.own_answer or [], row.own_answer or []
    if not row.ids_equal:
        what, trained, here = "prompt", row.prompt.prompt_ids, row.ids

    def text(numbers: list[int]) -> str:
        return ", ".join(classes[number] for number in numbers) if classes and what == "answer" else decode(numbers)

    pairs = zip(trained, here, strict=False)
    place = next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(trained), len(here)))
    return {
        "row": row.prompt.row,
        "what": what,
        "token": place,
        "trained": text(trained[place : place + 12]),
        "here": text(here[place : place + 12]),
        "trained_tokens": len(trained),
        "tokens_here": len(here),
    }
