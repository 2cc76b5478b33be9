"""Greedy answers of one prompt at a time, so that padding has no influence."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


@torch.inference_mode()
def greedy(
    model: Any, prompt: Sequence[int], ends: Sequence[int] | None, longest: int
) -> tuple[list[int], NDArray[np.float32]]:
    """The tokens that `model` generates, and its logits (vocabulary,) after the prompt.

    It stops after one of `ends`; None stands for those of the model's own generation configuration.
    """
    ids = torch.tensor([list(prompt)], device=model.device)
    stops = {} if ends is None else {"eos_token_id": list(ends) or None}
    output = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=longest,
        do_sample=False,
        use_cache=True,
        temperature=None,
        top_p=None,
        top_k=None,
        repetition_penalty=None,
        return_dict_in_generate=True,
        output_logits=True,
        **stops,
    )
    new = output.sequences[0, ids.shape[1] :].tolist()
    return [int(token) for token in new], output.logits[0][0].float().cpu().numpy()


@torch.inference_mode()
def scores(model: Any, text: Sequence[int]) -> tuple[list[int], NDArray[np.float32]]:
    """The class that `model` gives a text (none with one score), and its scores (classes,)."""
    return scored(model(input_ids=torch.tensor([list(text)], device=model.device)).logits[0])


def scored(logits: torch.Tensor) -> tuple[list[int], NDArray[np.float32]]:
    """The class with the largest of the scores (classes,), none of one score, and the scores in fp32."""
    return [int(logits.argmax())] if len(logits) > 1 else [], logits.float().cpu().numpy()


@torch.inference_mode()
def answer_loss(model: Any, prompt: Sequence[int], answer: Sequence[int]) -> float:
    """The mean cross-entropy, in nats, of the tokens of an answer after a prompt."""
    ids = torch.tensor([[*prompt, *answer]], device=model.device)
    # Counted from the end, since prompt tuning puts virtual tokens in front.
    logits = model(input_ids=ids, use_cache=False).logits[0, -len(answer) - 1 : -1].float()
    return float(torch.nn.functional.cross_entropy(logits, ids[0, len(prompt) :]))
