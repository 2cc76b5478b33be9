"""Answers rows with the classes of a classifier."""

from collections.abc import Callable

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from training.errors import UserError
from training.trainer.answering.questions import Question

_BATCH_ROWS = 32


@torch.inference_mode()
def answer_with_classes(
    model: PreTrainedModel,
    asked: list[Question],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    classes: tuple[str, ...],
    progress: Callable[[str, int, int], None],
) -> list[str]:
    """Returns the most probable class of each row, of its first `max_length` tokens as in training.

    Raises:
        UserError: the classes are unknown, since the run has not finished.
    """
    if not classes:
        raise UserError("run", None, "has not saved its classes yet.", "Finish the run, then evaluate it.")
    answers: list[str] = []
    for start in range(0, len(asked), _BATCH_ROWS):
        batch = [question.tokens[:max_length] for question in asked[start : start + _BATCH_ROWS]]
        inputs = tokenizer.pad({"input_ids": batch}, return_tensors="pt", padding=True, padding_side="right")
        inputs = inputs.to(model.device)
        logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
        answers += [classes[index] for index in logits.argmax(dim=-1).tolist()]
        progress("answering", len(answers), len(asked))
    return answers
