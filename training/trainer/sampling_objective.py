"""Objectives whose rows are prompts: before each optimizer step the model samples answers, on which the step trains.

Each rank draws the samples of its micro batches, by forward passes or by vLLM.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from training.batches.collators import Collate, PromptCollator
from training.config.run_config import RunConfig
from training.errors import ReviewRequested, StopRequested
from training.run_folder.events import Note
from training.trainer.alarms import Alarms
from training.trainer.objective import Objective
from training.trainer.prompts import Batch, prompts
from training.trainer.reporting_trainer import ReportingTrainer
from training.trainer.sample_passes import TRAINING, SamplePasses, vocabulary_of
from training.trainer.sample_records import SampleWriter
from training.trainer.vllm_sampler import VllmSampler


class SamplingObjective(Objective):
    """Puts samples in the place of the prompts of a step. A subclass makes batches of them, in `sampled`."""

    trainer: ReportingTrainer

    @classmethod
    def collator(cls, config: RunConfig, pad_token_id: int) -> Collate:  # noqa: ARG003
        """Pads prompts."""
        return PromptCollator(pad_token_id)

    def begin(self, trainer: ReportingTrainer) -> None:
        """Prepares what draws samples."""
        super().begin(trainer)
        self.passes = SamplePasses(trainer, vocabulary_of(trainer.model))
        self.vllm = VllmSampler(self.passes) if self.config.draws_with_vllm else None
        self.alarms = Alarms(self.config)

    def placed(self) -> dict[str, str]:
        """Prepares the records of samples: the first and last step are known."""
        state, generations = self.trainer.state, self.config.samples_per_prompt
        self.samples = SampleWriter(self.trainer.context.report, generations, state.global_step, state.max_steps)
        return super().placed()

    def before_first_step(self) -> None:
        """Draws samples of the untrained model, if the run wants them.

        Raises:
            NothingToLearn: nothing can be learned from them.
            StopRequested: a stop is requested meanwhile, or the run stops for a person to read them.
        """
        if self.config.baseline_prompts:
            self.alarms.begin(self.baseline())
            if self.config.stop_after_baseline:
                raise ReviewRequested

    def baseline(self) -> dict[str, float]:
        """Draws samples of the untrained model, reports them as step 0, and returns their means by the names of metrics.

        Raises:
            NothingToLearn: nothing can be learned from them.
            StopRequested: a stop is requested meanwhile.
        """
        raise NotImplementedError

    def sampled(self, batches: list[Batch], answers: list[list[list[int]]], seconds: float) -> list[Batch]:
        """Returns the micro batches of a step, with the samples of each of its prompts, which took `seconds` to draw."""
        raise NotImplementedError

    def tell(self, notes: Sequence[Note]) -> None:
        """Reports alarms."""
        for note in notes:
            self.trainer.context.report.for_run(note)

    def batches(self, batches: list[Batch]) -> list[Batch]:
        """The micro batches of the next step with samples of its prompts."""
        if not batches:
            return []
        trainer, tracker, start = self.trainer, self.trainer.context.tracker, time.perf_counter()
        trainer.throughput.add(torch.tensor(0), 0)  # its clock runs while samples are drawn
        tracker.begin()
        answers = self.vllm.drawn(batches, TRAINING) if self.vllm else []
        for batch in batches if not self.vllm else ():  # by micro batch, which bounds the memory
            tracker.train(trainer.state.global_step + 1, batch)
            answers.append(self.passes.drawn(batch))
        tracker.begin()
        return self.sampled(batches, answers, time.perf_counter() - start)

    def drawn(self, batch: Batch, purpose: int = TRAINING) -> list[list[int]]:
        """One sample for each prompt of a micro batch outside of steps, as tokens. A collective."""
        return self.vllm.drawn([batch], purpose)[0] if self.vllm else self.passes.drawn(batch, purpose)

    def first_samples(self) -> list[int]:
        """The samples of the run's first `baseline_prompts` prompts, as indexes of its data set."""
        assert self.trainer.rank_batches
        most = self.config.baseline_prompts * self.config.samples_per_prompt
        return [int(index) for index in self.trainer.rank_batches.order.epoch(0)[:most]]

    def first_drawn(self) -> Iterator[tuple[Batch, list[list[int]], int]]:
        """Draws these samples with the weights as they are, and yields this rank's micro batches, their samples, and how many of
        the last ones repeat another, since a rank with fewer repeats one. A collective.

        Raises:
            StopRequested: a stop is requested meanwhile.
        """
        trainer, args, context = self.trainer, self.trainer.args, self.trainer.context
        every = self.first_samples()
        mine, most = every[args.process_index :: args.world_size], -(-len(every) // args.world_size)
        asked = mine + every[:1] * (most - len(mine))
        with self._awake():
            for begin in range(0, most, size := self.config.micro_batch_size):
                if context.stop.agreed():
                    raise StopRequested
                context.report.progress(begin * args.world_size, len(every))
                part = asked[begin : begin + size]
                batch = trainer.data_collator([trainer.train_dataset[index] for index in part])
                yield batch, self.drawn(batch), len(part) - len(mine[begin : begin + size])

    def _awake(self) -> AbstractContextManager[None]:
        """A context in which samples are drawn several times."""
        return self.vllm.awake() if self.vllm else nullcontext()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """A context in which samples of held-out prompts, or answers to them, are drawn."""
        with self._awake():
            yield

    def largest(self, batch: Batch) -> Batch:
        """The prompts of a batch with samples of the greatest length."""
        tokens = list(prompts(batch))
        return self.passes.padded(tokens, self.passes.longest(len(tokens)))

    def size(self, batch: Batch) -> tuple[torch.Tensor, int]:
        """Counts the tokens of prompts and samples; a sample is one row."""
        masks: list[Any] = [
            batch[name] for name in ("prompt_mask", "completion_mask", "attention_mask") if name in batch
        ]
        return torch.stack([mask.sum() for mask in masks]).sum(), len(masks[0])
