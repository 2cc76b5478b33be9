"""Greedy answers, scores and losses of the trained model, one prompt at a time, so that padding has no influence."""

from collections.abc import Sequence
from contextlib import nullcontext
from inspect import signature
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from training.batches.layout import base_of
from training.models.plain_decoding import own_values, plain_decoding

Answer = tuple[list[int], NDArray[np.float32]]
"""Tokens, or a class, and logits or scores."""


class Whole:
    """A model that this rank holds alone."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @torch.inference_mode()
    def greedy(self, prompt: Sequence[int], ends: Sequence[int] | None, longest: int, *, own: bool = False) -> Answer:
        """A greedy answer of at most `longest` tokens, and the logits (vocabulary,) after the prompt.

        It stops after one of `ends`; None stands for those of the model's own generation configuration. With `own` all of that
        configuration applies, such as a repetition penalty, but no sampling.
        """
        ids = self._ids(prompt)
        stops = {} if ends is None else {"eos_token_id": list(ends) or None}
        with nullcontext() if own else plain_decoding(self._model):
            output = self._model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=longest,
                do_sample=False,
                use_cache=True,
                return_dict_in_generate=True,
                output_logits=True,
                **stops,
            )
        new = output.sequences[0, ids.shape[1] :].tolist()
        return [int(token) for token in new], output.logits[0][0].float().cpu().numpy()

    def own(self, prompt: Sequence[int], ends: Sequence[int] | None, longest: int) -> list[int] | None:
        """As `greedy`, under all of the model's own generation configuration; None if that says nothing but token ids."""
        return self.greedy(prompt, ends, longest, own=True)[0] if own_values(self._model) else None

    @torch.inference_mode()
    def scores(self, text: Sequence[int]) -> Answer:
        """The class that the model gives a text (none with one score), and its scores (classes,) in fp32."""
        return _scored(self._model(input_ids=self._ids(text)).logits[0])

    @torch.inference_mode()
    def loss(self, prompt: Sequence[int], answer: Sequence[int]) -> float:
        """The mean cross-entropy, in nats, of the tokens of an answer after a prompt."""
        ids = self._ids([*prompt, *answer])
        # Counted from the end, since prompt tuning puts virtual tokens in front.
        logits = self._model(input_ids=ids, use_cache=False).logits[0, -len(answer) - 1 : -1].float()
        return float(torch.nn.functional.cross_entropy(logits, ids[0, len(prompt) :]))

    def _ids(self, tokens: Sequence[int]) -> torch.Tensor:
        return torch.tensor([list(tokens)], device=self._model.device)


class Sharded:
    """As `Whole`, of a model whose weights the ranks share (ZeRO-3, FSDP). Every rank asks it the same, of whole sequences.

    Each token is a forward pass of the wrapped model without a cache: FSDP gathers the weights outside the layers only then.
    """

    def __init__(self, wrapped: Any, plain: Any, device: torch.device) -> None:
        self._model, self._device = wrapped, device
        self._keeps = "logits_to_keep" in signature(base_of(plain).forward).parameters

    def greedy(self, prompt: Sequence[int], ends: Sequence[int], longest: int) -> Answer:
        first = self._logits(prompt, 1)[0]
        tokens = [self._agreed(first)]
        while len(tokens) < longest and tokens[-1] not in ends:
            tokens.append(self._agreed(self._logits([*prompt, *tokens], 1)[0]))
        return tokens, first.cpu().numpy()

    def own(self, prompt: Sequence[int], ends: Sequence[int], longest: int) -> None:
        """None: each token is a forward pass, to which no generation configuration applies."""

    @torch.no_grad()
    def scores(self, text: Sequence[int]) -> Answer:
        given = torch.tensor([list(text)], device=self._device)
        return _scored(self._model(input_ids=given, use_cache=False).logits[0])

    def loss(self, prompt: Sequence[int], answer: Sequence[int]) -> float:
        logits = self._logits([*prompt, *answer], len(answer) + 1)[:-1]
        return float(torch.nn.functional.cross_entropy(logits, torch.tensor(list(answer), device=logits.device)))

    # Not inference_mode: the ranks gather the same weights again when they save.
    @torch.no_grad()
    def _logits(self, ids: Sequence[int], count: int) -> torch.Tensor:
        """The logits (count, vocabulary) after the last tokens, in fp32."""
        kept = {"logits_to_keep": count} if self._keeps else {}
        given = torch.tensor([list(ids)], device=self._device)
        logits: torch.Tensor = self._model(input_ids=given, use_cache=False, **kept).logits[0, -count:]
        return logits.float()

    def _agreed(self, logits: torch.Tensor) -> int:
        """Rank 0's most probable token: with another, a rank could take one step more than the others and wait for ever."""
        token = logits.argmax().reshape(1)
        dist.broadcast(token, src=0)
        return int(token)


Trained = Whole | Sharded


def _scored(logits: torch.Tensor) -> Answer:
    return [int(logits.argmax())] if len(logits) > 1 else [], logits.float().cpu().numpy()
