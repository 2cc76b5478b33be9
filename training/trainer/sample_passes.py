"""Forward passes of the model that trains on prompts and samples of a rank: drawing samples, and scoring their tokens.

The random numbers of a sample depend only on the seed, the epoch and the sample's number, so that it does not depend on the split
into micro batches and ranks, or on a resume.
"""

from collections.abc import Sequence
from typing import Any

import torch

from training.batches.layout import base_of, evaluating
from training.config.choices import Strategy
from training.trainer.answering import end_tokens
from training.trainer.generation import Choose, Sampler, continued, left_padded
from training.trainer.prompts import Batch, prompts
from training.trainer.reporting_trainer import ReportingTrainer

TRAINING, HELD_OUT = 11, 12
"""Seeds of samples, which differ from the other seeds (training/tokens)."""


class SamplePasses:
    """The model as it is now; `ends` are the tokens that end a sample, `vocabulary` the number of those that can be drawn."""

    def __init__(self, trainer: ReportingTrainer, vocabulary: int) -> None:
        self.trainer, self.config, self.vocabulary = trainer, trainer.context.config, vocabulary
        self.ends = end_tokens(trainer.model.generation_config, trainer.processing_class)
        self.padding = int(trainer.processing_class.pad_token_id)

    def drawn(self, batch: Batch, purpose: int = TRAINING) -> list[list[int]]:
        """One sample for each prompt of a micro batch, as tokens. A collective."""
        longest, device = self.config.max_completion_length, self.trainer.args.device
        sampler = Sampler(self.seeds(batch, purpose), longest, self.config.temperature, device)
        return self._continued(list(prompts(batch)), sampler)

    def greedy(self, batch: Batch) -> list[list[int]]:
        """The most probable answer to each prompt of a micro batch, as tokens. A collective."""
        return self._continued(list(prompts(batch)), lambda logits, _: logits.argmax(dim=-1))

    def seeds(self, batch: Batch, purpose: int) -> list[tuple[int, ...]]:
        """The numbers on which each sample of a micro batch depends."""
        batches = self.trainer.rank_batches
        epoch = batches.epoch if batches and purpose == TRAINING else 0
        return [(self.config.seed, epoch, sample, purpose) for sample in batch["sample"].tolist()]

    def _continued(self, tokens: Sequence[list[int]], choose: Choose) -> list[list[int]]:
        """The tokens that `choose` adds to each prompt, including the one that ends it. A collective."""
        trainer, longest = self.trainer, self.config.max_completion_length

        def known(logits: torch.Tensor, length: int) -> torch.Tensor:
            return choose(logits[:, : self.vocabulary], length)

        with evaluating(trainer.model), trainer.compute_loss_context_manager():
            answers = continued(trainer.model, tokens, longest, self.ends, self.padding, trainer.args.device, known)
        self.forget_order()
        return answers

    def logits(self, model: Any, inputs: Batch) -> torch.Tensor:
        """The logits from the prompt's last token on, of (rows, length of the samples + 1, vocabulary)."""
        tokens = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        kept = inputs["completion_ids"].shape[1] + 1
        arguments = left_padded(self.trainer.accelerator.unwrap_model(model), mask, kept)
        logits: torch.Tensor = model(input_ids=tokens, use_cache=False, **arguments).logits
        return logits[:, -kept:]

    @torch.no_grad()
    def logps(self, tokens: Sequence[list[int]], answers: Sequence[list[int]]) -> torch.Tensor:
        """The log-probability of each token of samples at the run's temperature, of (rows, length). A collective."""
        trainer = self.trainer
        inputs = trainer._prepare_inputs(self.padded(tokens, answers))
        with evaluating(trainer.model), trainer.compute_loss_context_manager():
            logits = self.logits(trainer.model, inputs)[:, :-1].float() / self.config.temperature
        self.forget_order()
        drawn: torch.Tensor = inputs["completion_ids"][..., None]
        return logits.log_softmax(dim=-1).gather(-1, drawn).squeeze(-1)

    def forget_order(self) -> None:
        """Lets ZeRO-3 record again in which order a step needs the weights: what it has recorded are forward passes alone."""
        if self.config.strategy is Strategy.ZERO3:
            coordinator = self.trainer.model_wrapped.optimizer.parameter_offload.get_param_coordinator()
            if not coordinator.is_invalid_trace():
                coordinator._invalidate_trace()

    def padded(self, tokens: Sequence[list[int]], answers: Sequence[list[int]]) -> Batch:
        """Prompts padded on the left and samples on the right, as trl's losses take them: ids and masks of (rows, length)."""
        before, before_mask = _padded(tokens, self.padding, left=True)
        after, after_mask = _padded(answers, self.padding, left=False)
        return {
            "prompt_ids": before,
            "prompt_mask": before_mask,
            "completion_ids": after,
            "completion_mask": after_mask,
        }

    def longest(self, count: int) -> list[list[int]]:
        """Samples of the greatest length, for the probe."""
        return [[self.padding] * self.config.max_completion_length] * count


def vocabulary_of(model: Any) -> int:
    """The number of tokens of a model, with those that only pad it."""
    return int(base_of(model).config.get_text_config().vocab_size)


def _padded(rows: Sequence[list[int]], padding: int, *, left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows as a tensor of (rows, length), and the mask that is 1 at their tokens."""
    width = max(map(len, rows))
    gaps = [width - len(row) for row in rows]
    before = [gap if left else 0 for gap in gaps]
    tokens = torch.full((len(rows), width), padding)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for index, (row, start) in enumerate(zip(rows, before, strict=True)):
        tokens[index, start : start + len(row)] = torch.tensor(row)
        mask[index, start : start + len(row)] = 1
    return tokens, mask
