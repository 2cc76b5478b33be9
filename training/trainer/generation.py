"""Answers of a model token by token, by its forward pass alone, which works on every strategy."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from peft import PeftModel

from training.batches.layout import base_of
from training.ranks.distributed import reduce_over_ranks

Choose = Callable[[torch.Tensor, int], torch.Tensor]
"""Returns the next token of each row, of shape (rows,), for the logits of shape (rows, vocabulary) and the tokens before it."""


@torch.no_grad()
def continued(
    model: Any,
    prompts: Sequence[Sequence[int]],
    longest: int,
    ends: Sequence[int],
    padding: int,
    device: torch.device,
    choose: Choose,
) -> list[list[int]]:
    """Returns the chosen tokens after each prompt, up to and including an end token, or `longest`.

    A collective: each rank calls it with as many prompts, and all take as many forward passes, since sharded weights are gathered
    in each. `generate` calls modules inside the model, whose root then does not gather its own weights (FSDP). `device` is that of
    the forward pass: offloaded weights are elsewhere.
    """
    inputs = _Inputs(model, prompts, padding, device)
    answers = torch.empty(len(prompts), 0, dtype=torch.long, device=device)
    ended = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    lengths = torch.full((len(prompts),), longest, device=device)
    stops = torch.tensor(list(ends), device=device)
    for length in range(longest):
        token = torch.where(ended, padding, choose(inputs.forward(answers), length))
        ends_now = ~ended & torch.isin(token, stops)
        lengths[ends_now] = length + 1
        ended |= ends_now
        answers = torch.cat([answers, token[:, None]], dim=1)
        if reduce_over_ranks(ended.all().to(torch.int32), dist.ReduceOp.MIN):
            break
    return [row[:length] for row, length in zip(answers.tolist(), lengths.tolist(), strict=True)]


def left_padded(model: Any, mask: torch.Tensor, kept: int) -> dict[str, Any]:
    """The arguments of a decoder's forward pass on rows that are padded on the left, whose last `kept` logits are needed.

    Without positions, models with absolute ones would count the padding.
    """
    parameters = inspect.signature(base_of(model).forward).parameters
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    # A router's loss would need the mask of the new tokens alone, and nothing reads it here.
    optional = {"position_ids": positions, "logits_to_keep": kept, "output_router_logits": False}
    return {"attention_mask": mask} | {name: value for name, value in optional.items() if name in parameters}


class Sampler:
    """Draws tokens from the distribution of the logits, by one uniform number for each token of a row.

    The numbers of a row depend only on its `seeds`, so its sample is the same whichever rank and batch it is in, and after a
    resume (but for rounding of the logits, which depends on the shape of the batch).
    """

    def __init__(self, seeds: Sequence[Sequence[int]], longest: int, temperature: float, device: torch.device) -> None:
        draws = [np.random.Generator(np.random.PCG64(list(seed))).random(longest) for seed in seeds]
        self._draws = torch.from_numpy(np.stack(draws)).to(device)
        self._temperature = temperature

    def __call__(self, logits: torch.Tensor, length: int) -> torch.Tensor:
        """The tokens at which the cumulative probabilities exceed the rows' numbers."""
        sums = (logits / self._temperature).double().softmax(dim=-1).cumsum(dim=-1)
        drawn = self._draws[:, length, None] * sums[:, -1:]  # below the last sum, which rounding may have moved from 1
        return torch.searchsorted(sums, drawn, right=True).squeeze(1).clamp(max=logits.shape[1] - 1)


class _Inputs:
    """The arguments of the next forward pass. Past keys and values are kept where the model returns them."""

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]], padding: int, device: torch.device) -> None:
        self._model, width = model, max(map(len, prompts))
        base = base_of(model)
        self._start: Any = base.config.decoder_start_token_id if base.config.is_encoder_decoder else None
        self._virtual = isinstance(model, PeftModel) and model.active_peft_config.is_prompt_learning
        rows = [[padding] * (width - len(prompt)) + list(prompt) for prompt in prompts]
        seen = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        self._ids = torch.tensor(rows, device=device)
        self._mask = torch.tensor(seen, device=device)
        self._past: Any = None
        self._encoded: Any = None

    def forward(self, answers: torch.Tensor) -> torch.Tensor:
        """Returns the logits of the next token, of shape (rows, vocabulary)."""
        output = self._encoder_decoder(answers) if self._start is not None else self._decoder(answers)
        return output.logits[:, -1].float()  # type: ignore[no-any-return]

    def _decoder(self, answers: torch.Tensor) -> Any:
        mask = torch.cat([self._mask, torch.ones_like(answers)], dim=1)
        ids = torch.cat([self._ids, answers], dim=1)
        arguments = left_padded(self._model, mask, 1) | {"use_cache": not self._virtual}
        if self._virtual:
            arguments.pop("position_ids", None)
        if self._past is not None:
            ids = ids[:, -1:]
            arguments["past_key_values"] = self._past
            if "position_ids" in arguments:
                arguments["position_ids"] = arguments["position_ids"][:, -1:]
        output = self._model(input_ids=ids, **arguments)
        self._past = None if self._virtual else getattr(output, "past_key_values", None)
        return output

    def _encoder_decoder(self, answers: torch.Tensor) -> Any:
        starts = torch.full((len(answers), 1), self._start, device=answers.device)
        read = (
            {"input_ids": self._ids} if self._encoded is None or self._virtual else {"encoder_outputs": self._encoded}
        )
        output = self._model(
            **read, attention_mask=self._mask, decoder_input_ids=torch.cat([starts, answers], dim=1), use_cache=False
        )
        self._encoded = (output.encoder_last_hidden_state,)
        return output
