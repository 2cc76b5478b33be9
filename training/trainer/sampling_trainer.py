"""Trainers whose rows are prompts: before each optimizer step the model samples answers, on which the step trains.

Each rank draws the samples of its micro batches. The random numbers of a sample depend only on the seed, the epoch and the sample's
number, so that it does not depend on the split into micro batches and ranks, or on a resume.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from transformers import Trainer, TrainerState

from training.batches.layout import base_of, evaluating
from training.config.choices import Strategy
from training.errors import ReviewRequested, StopRequested
from training.run_folder.events import Note
from training.trainer.alarms import Alarms
from training.trainer.answering import end_tokens
from training.trainer.generation import Choose, Sampler, continued, left_padded
from training.trainer.prompts import Batch, prompts
from training.trainer.reporting_trainer import ReportingTrainer
from training.trainer.sample_records import SampleWriter
from training.trainer.vllm_sampler import VllmSampler

TRAINING, HELD_OUT = 11, 12
"""Seeds of samples, which differ from the other seeds (training/tokens)."""


class HeldOutSamples(Trainer):  # type: ignore[misc]
    """A Trainer that evaluates on answers of the model; the last base of a `SamplingTrainer` but trl's."""

    def prediction_step(self, model: Any, inputs: Batch, *_: Any, **__: Any) -> tuple[Any, None, None]:  # noqa: ARG002
        loss: torch.Tensor = self.held_out_loss(inputs)
        return loss, None, None


class SamplingTrainer(ReportingTrainer):
    """Puts samples in the place of the prompts of a step. A subclass makes batches of them, in `sampled`."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.ends = end_tokens(self.model.generation_config, self.processing_class)
        self.vocabulary = vocabulary_of(self.model)
        self._padding = int(self.processing_class.pad_token_id)
        self.vllm = VllmSampler(self) if self.context.config.draws_with_vllm else None
        self.alarms = Alarms(self.context.config)

    def on_model_placed(self, placement: dict[str, Any], state: TrainerState) -> None:
        """Called when the model is wrapped and placed: the first and last step are known."""
        super().on_model_placed(placement, state)
        generations = self.context.config.samples_per_prompt
        self.samples = SampleWriter(self.context.report, generations, state.global_step, state.max_steps)

    def before_first_step(self) -> None:
        """Draws samples of the untrained model, if the run wants them.

        Raises:
            NothingToLearn: nothing can be learned from them.
            StopRequested: a stop is requested meanwhile, or the run stops for a person to read them.
        """
        super().before_first_step()
        config = self.context.config
        if config.baseline_prompts:
            self.alarms.begin(self.baseline())
            if config.stop_after_baseline:
                raise ReviewRequested

    def baseline(self) -> dict[str, float]:
        """Draws samples of the untrained model, reports them as step 0, and returns their means by the names of metrics.

        Raises:
            NothingToLearn: nothing can be learned from them.
            StopRequested: a stop is requested meanwhile.
        """
        raise NotImplementedError

    def tell(self, notes: Sequence[Note]) -> None:
        """Reports alarms."""
        for note in notes:
            self.context.report.for_run(note)

    def sampled(self, batches: list[Batch], answers: list[list[list[int]]], seconds: float) -> list[Batch]:
        """Returns the micro batches of a step, with the samples of each of its prompts, which took `seconds` to draw."""
        raise NotImplementedError

    def held_out_loss(self, inputs: Batch) -> torch.Tensor:
        """Returns the evaluation loss of a batch of held-out prompts, of shape ()."""
        raise NotImplementedError

    def get_batch_samples(self, batches: Iterator[Any], *arguments: Any) -> tuple[list[Any], None]:
        """The micro batches of a step, with samples in place of prompts."""
        count, *others = arguments
        step = [batch for _, batch in zip(range(count), batches, strict=False)]
        return super().get_batch_samples(iter(self.with_samples(step)), len(step), *others)

    def with_samples(self, batches: list[Batch]) -> list[Batch]:
        """The micro batches of the next step with samples of its prompts."""
        if not batches:
            return []
        start = time.perf_counter()
        self.throughput.add(torch.tensor(0), 0)  # its clock runs while samples are drawn
        tracker = self.context.tracker
        tracker.begin()
        answers = self.vllm.drawn(batches, TRAINING) if self.vllm else []
        for batch in batches if not self.vllm else ():  # by micro batch, which bounds the memory
            tracker.train(self.state.global_step + 1, batch)
            answers.append(self.drawn(batch))
        tracker.begin()
        return self.sampled(batches, answers, time.perf_counter() - start)

    def first_samples(self) -> list[int]:
        """The samples of the run's first `baseline_prompts` prompts, as indexes of its data set."""
        assert self._batches
        most = self.context.config.baseline_prompts * self.context.config.samples_per_prompt
        return [int(index) for index in self._batches.order.epoch(0)[:most]]

    def first_drawn(self) -> Iterator[tuple[Batch, list[list[int]], int]]:
        """Draws these samples with the weights as they are, and yields this rank's micro batches, their samples, and how many of
        the last ones repeat another, since a rank with fewer repeats one. A collective.

        Raises:
            StopRequested: a stop is requested meanwhile.
        """
        args, every, context = self.args, self.first_samples(), self.context
        mine, most = every[args.process_index :: args.world_size], -(-len(every) // args.world_size)
        asked = mine + every[:1] * (most - len(mine))
        with self.awake():
            for begin in range(0, most, size := context.config.micro_batch_size):
                if context.stop.agreed():
                    raise StopRequested
                context.report.progress(begin * args.world_size, len(every))
                part = asked[begin : begin + size]
                batch = self.data_collator([self.train_dataset[index] for index in part])
                yield batch, self.drawn(batch), len(part) - len(mine[begin : begin + size])

    def awake(self) -> AbstractContextManager[None]:
        """A context in which samples are drawn several times."""
        return self.vllm.awake() if self.vllm else nullcontext()

    def evaluate(self, *arguments: Any, **named: Any) -> dict[str, float]:
        """Evaluates on samples of the held-out prompts, or on answers to them."""
        with self.awake():
            metrics: dict[str, float] = super().evaluate(*arguments, **named)
        return metrics

    def drawn(self, batch: Batch, purpose: int = TRAINING) -> list[list[int]]:
        """One sample for each prompt of a micro batch, as tokens. A collective."""
        if self.vllm:
            return self.vllm.drawn([batch], purpose)[0]
        config, device = self.context.config, self.args.device
        sampler = Sampler(self.seeds(batch, purpose), config.max_completion_length, config.temperature, device)
        return self.continued(list(prompts(batch)), sampler)

    def seeds(self, batch: Batch, purpose: int) -> list[tuple[int, ...]]:
        """The numbers on which each sample of a micro batch depends."""
        epoch = self._batches.epoch if self._batches and purpose == TRAINING else 0
        return [(self.context.config.seed, epoch, sample, purpose) for sample in batch["sample"].tolist()]

    def greedy(self, batch: Batch) -> list[list[int]]:
        """The most probable answer to each prompt of a micro batch, as tokens. A collective."""
        tokens = list(prompts(batch))
        if self.vllm:
            return self.vllm.greedy(tokens)
        return self.continued(tokens, lambda logits, _: logits.argmax(dim=-1))

    def continued(self, tokens: Sequence[list[int]], choose: Choose) -> list[list[int]]:
        """The tokens that `choose` adds to each prompt, including the one that ends it. A collective."""
        longest = self.context.config.max_completion_length
        with evaluating(self.model), self.compute_loss_context_manager():
            answers = continued(self.model, tokens, longest, self.ends, self._padding, self.args.device, choose)
        self.forget_order()
        return answers

    def sample_logits(self, model: Any, inputs: Batch) -> torch.Tensor:
        """The logits from the prompt's last token on, of (rows, length of the samples + 1, vocabulary)."""
        tokens = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        kept = inputs["completion_ids"].shape[1] + 1
        arguments = left_padded(self.accelerator.unwrap_model(model), mask, kept)
        logits: torch.Tensor = model(input_ids=tokens, use_cache=False, **arguments).logits
        return logits[:, -kept:]

    @torch.no_grad()
    def logps(self, tokens: Sequence[list[int]], answers: Sequence[list[int]]) -> torch.Tensor:
        """The log-probability of each token of samples at the run's temperature, of (rows, length). A collective."""
        inputs = self._prepare_inputs(self.padded(tokens, answers))
        with evaluating(self.model), self.compute_loss_context_manager():
            logits = self.sample_logits(self.model, inputs)[:, :-1].float() / self.context.config.temperature
        self.forget_order()
        drawn: torch.Tensor = inputs["completion_ids"][..., None]
        return logits.log_softmax(dim=-1).gather(-1, drawn).squeeze(-1)

    def forget_order(self) -> None:
        """Lets ZeRO-3 record again in which order a step needs the weights: what it has recorded are forward passes alone."""
        if self.context.config.strategy is Strategy.ZERO3:
            coordinator = self.model_wrapped.optimizer.parameter_offload.get_param_coordinator()
            if not coordinator.is_invalid_trace():
                coordinator._invalidate_trace()

    def padded(self, tokens: Sequence[list[int]], answers: Sequence[list[int]]) -> Batch:
        """Prompts padded on the left and samples on the right, as trl's trainers take them: ids and masks of (rows, length)."""
        before, before_mask = _padded(tokens, self._padding, left=True)
        after, after_mask = _padded(answers, self._padding, left=False)
        return {
            "prompt_ids": before,
            "prompt_mask": before_mask,
            "completion_ids": after,
            "completion_mask": after_mask,
        }

    def longest(self, count: int) -> list[list[int]]:
        """Samples of the greatest length, for the probe."""
        return [[self._padding] * self.context.config.max_completion_length] * count

    def count(self, inputs: Batch) -> tuple[torch.Tensor, int]:
        """Counts the tokens of prompts and samples; a sample is one row."""
        masks = [inputs[name] for name in ("prompt_mask", "completion_mask", "attention_mask") if name in inputs]
        return torch.stack([mask.sum() for mask in masks]).sum(), len(masks[0])


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
