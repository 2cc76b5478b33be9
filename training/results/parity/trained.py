"""The trained model, as it answers the prompts of the reference before anything is saved."""

from collections.abc import Sequence
from inspect import signature
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from training.batches.padding_free import base_of
from training.results.parity.generation import answer_loss, greedy, scored, scores


class Trained(Protocol):
    """A model that answers."""

    def greedy(self, prompt: Sequence[int], ends: Sequence[int], longest: int) -> tuple[list[int], NDArray[np.float32]]:
        """A greedy answer of at most `longest` tokens, and the logits (vocabulary,) after the prompt."""

    def scores(self, text: Sequence[int]) -> tuple[list[int], NDArray[np.float32]]:
        """The class of a text, none of a reward model, and the scores (classes,)."""

    def loss(self, prompt: Sequence[int], answer: Sequence[int]) -> float:
        """The mean cross-entropy, in nats, of an answer."""


class Whole:
    """A model that this rank holds alone."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def greedy(self, prompt: Sequence[int], ends: Sequence[int], longest: int) -> tuple[list[int], NDArray[np.float32]]:
        """As `Trained`."""
        return greedy(self._model, prompt, ends, longest)

    def scores(self, text: Sequence[int]) -> tuple[list[int], NDArray[np.float32]]:
        """As `Trained`."""
        return scores(self._model, text)

    def loss(self, prompt: Sequence[int], answer: Sequence[int]) -> float:
        """As `Trained`."""
        return answer_loss(self._model, prompt, answer)


class Sharded:
    """A model whose weights the ranks share (ZeRO-3, FSDP). Every rank asks it the same, and computes whole sequences.

    Each token is a forward pass of the wrapped model without a cache: FSDP gathers the weights outside the layers only then.
    """

    def __init__(self, wrapped: Any, plain: Any, device: torch.device) -> None:
        self._model, self._device = wrapped, device
        self._keeps = "logits_to_keep" in signature(base_of(plain).forward).parameters

    def greedy(self, prompt: Sequence[int], ends: Sequence[int], longest: int) -> tuple[list[int], NDArray[np.float32]]:
        """As `Trained`."""
        first = self._logits(prompt, 1)[0]
        tokens = [self._agreed(first)]
        while len(tokens) < longest and tokens[-1] not in ends:
            tokens.append(self._agreed(self._logits([*prompt, *tokens], 1)[0]))
        return tokens, first.cpu().numpy()

    @torch.no_grad()
    def scores(self, text: Sequence[int]) -> tuple[list[int], NDArray[np.float32]]:
        """As `Trained`."""
        given = torch.tensor([list(text)], device=self._device)
        return scored(self._model(input_ids=given, use_cache=False).logits[0])

    def loss(self, prompt: Sequence[int], answer: Sequence[int]) -> float:
        """As `Trained`."""
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
