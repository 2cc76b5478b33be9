"""On-policy distillation: learns the probabilities that a teacher gives to the tokens of samples of the model itself.

The loss of a token is a divergence between the probabilities of teacher and student (Agarwal et al. 2024); that of a step is one
mean over the tokens of the global batch. Both models compute their logits by their own forward passes, and not from the weights of
their heads as trl's trainer does, so that adapters of heads and all that a model does to its logits count.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from training.batches.layout import evaluating
from training.config.run_config import RunConfig
from training.ranks.distributed import gathered
from training.run_folder.events import Metrics
from training.trainer import overlap
from training.trainer.evaluation import Means
from training.trainer.jensen_shannon import token_measures
from training.trainer.loss_terms import TOKENS, LossTerm, LossTerms
from training.trainer.prompts import Batch, prompts
from training.trainer.questions import Questions
from training.trainer.reporting_trainer import ReportingTrainer
from training.trainer.sample_means import SampleMeans, of_samples
from training.trainer.sample_passes import HELD_OUT, vocabulary_of
from training.trainer.sample_records import Scored
from training.trainer.sampling_objective import SamplingObjective

_SCORE = "teacher_logprob"
_OF_TOKENS = ("entropy", _SCORE)


class Compared(NamedTuple):
    """The means over the tokens of samples, and the mean log-probability that the teacher gives to a token of each, of (rows,)."""

    means: Means
    scores: torch.Tensor


class Drawn(NamedTuple):
    """The samples of a micro batch, of which the last `repeats` do not count."""

    batch: Batch
    answers: list[list[int]]
    repeats: int


class DistillationObjective(SamplingObjective):
    """Compares the model with a teacher, a whole, frozen model on the rank's device."""

    _teacher_seconds = 0.0

    def __init__(
        self, config: RunConfig, model: Any, *, teacher: PreTrainedModel | PeftModel, questions: Questions, **named: Any
    ) -> None:
        super().__init__(config, model, **named)
        self.teacher, self._questions = teacher, questions
        self._drawn, self._scores = list[Drawn](), list[torch.Tensor]()  # of the last step
        self._means = SampleMeans()

    def begin(self, trainer: ReportingTrainer) -> None:
        """Also lets the tokens be drawn that both models have."""
        super().begin(trainer)
        sizes = [self.passes.vocabulary, vocabulary_of(self.teacher)]
        self.passes.vocabulary = min(sizes)
        if max(sizes) > min(sizes):
            message = (
                "The vocabularies are padded to {:,} tokens (model) and {:,} (teacher): the first {:,} are compared."
            )
            trainer.context.report.note(message.format(*sizes, min(sizes)))

    def baseline(self) -> dict[str, float]:
        """Also measures how probable the teacher finds them."""
        means, drawn, scores, report = SampleMeans(), list[Drawn](), list[torch.Tensor](), self.trainer.context.report
        with report.during("sampling"):
            for part in map(Drawn._make, self.first_drawn()):
                compared = self._of_samples(*part)
                means.add(compared.means)
                drawn.append(part)
                scores.append(compared.scores)
            self._write(0, drawn, scores)
        values = means.take()
        del values["loss"]  # which is that of steps
        report.for_run(Metrics(step=0, values=dict(values)))
        report.note(overlap.note(values, len(self.first_samples())))
        for sentence in overlap.warnings(values, self.config):
            report.warn(sentence)
        return values

    def sampled(self, batches: list[Batch], answers: list[list[list[int]]], seconds: float) -> list[Batch]:
        """The samples of a step's micro batches."""
        counted = len(answers) - self.trainer.empty_in_step(len(batches))
        repeats = [0 if index < counted else len(part) for index, part in enumerate(answers)]
        self._drawn, self._scores = list(map(Drawn, batches, answers, repeats)), []
        flat = [answer for part in answers[:counted] for answer in part]
        own = of_samples(flat, self.passes.ends, self.trainer.args.device)
        self._means.add(own)
        self._means.add_seconds("generate_seconds", seconds, steps=1)
        if self.vllm:
            self._means.add(self.vllm.means())
        of_step = SampleMeans()
        of_step.add(own)
        self.tell(self.alarms.after_step(of_step.take()))
        return [self.passes.padded(list(prompts(batch)), part) for batch, part in zip(batches, answers, strict=True)]

    def loss(self, model: torch.nn.Module, batch: Batch) -> LossTerms:
        """Returns the mean divergence over the tokens of the samples of a micro batch."""
        (means, scores), step = self._compared(model, batch), self.trainer.step_weights
        if step:
            self._scores.append(scores)
            self._means.add({name: (means[name][0], means[name][1] * step.counts) for name in _OF_TOKENS})
            self._means.add_seconds("teacher_seconds", self._teacher_seconds)
        return LossTerms((LossTerm(means["loss"][0], TOKENS),))

    def _compared(self, model: torch.nn.Module, inputs: Batch) -> Compared:
        """The loss and what else is measured on samples."""
        began = self._clock()
        with torch.no_grad():
            others = self.passes.logits(self.teacher, inputs)
        self._teacher_seconds = self._clock() - began
        own = self.passes.logits(model, inputs)
        # The logits after the last token predict nothing; without them the rest would be copied.
        drawn, mask = (torch.nn.functional.pad(inputs[name], (0, 1)) for name in ("completion_ids", "completion_mask"))
        config, flat = self.config, mask.flatten().bool()
        measures = token_measures(
            own.flatten(0, 1), others.flatten(0, 1), drawn.flatten(), config.jsd_coefficient, config.temperature
        )
        count, counted = mask.sum(), [torch.where(flat, values, 0) for values in measures]
        means = {name: (one.sum() / count, count) for name, one in zip(("loss", *_OF_TOKENS), counted, strict=True)}
        return Compared(means, counted[-1].view_as(mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1))

    def _clock(self) -> float:
        """The time in seconds when the device has done its work."""
        if self.trainer.args.device.type == "cuda":
            torch.cuda.synchronize(self.trainer.args.device)
        return time.perf_counter()

    def items(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Returns the number of the samples' tokens."""
        return {TOKENS: batch["completion_mask"].sum()}

    def held_out(self, model: torch.nn.Module, batch: Batch) -> Means:  # noqa: ARG002 it draws samples, wrapped or not
        """Returns the mean divergence on one sample of each prompt, drawn with the same random numbers at each evaluation, and what
        else is measured on it."""
        return self._of_samples(batch, self.drawn(batch, HELD_OUT)).means

    def _of_samples(self, batch: Batch, answers: list[list[int]], repeats: int = 0) -> Compared:
        """What is measured on samples outside of training, of which the last `repeats` do not count. A collective."""
        counted = len(answers) - repeats
        trainer = self.trainer
        inputs = trainer._prepare_inputs(self.passes.padded(list(prompts(batch)), answers))
        inputs["completion_mask"][counted:] = 0
        with evaluating(trainer.model), trainer.compute_loss_context_manager():
            means, scores = self._compared(trainer.model, inputs)
        self.passes.forget_order()
        return Compared(means | of_samples(answers[:counted], self.passes.ends, self.trainer.args.device), scores)

    def _write(self, step: int, drawn: Sequence[Drawn], scores: Sequence[torch.Tensor]) -> None:
        """Writes the samples of all ranks as records, each with its score. A collective."""
        mine = [
            one for part, of_part in zip(drawn, scores, strict=True) for one in self._scored(part, of_part.tolist())
        ]
        samples = [one for rank in gathered(mine) for one in rank]
        self.samples.write(step, sorted(samples, key=lambda one: one.sample))

    def _scored(self, part: Drawn, scores: list[float]) -> list[Scored]:
        """The samples of a micro batch that count, with these scores."""
        numbers, rows = part.batch["sample"].tolist(), part.batch["row"].tolist()
        texts, counted = self._questions.texts(part.answers), len(part.answers) - part.repeats
        return [
            Scored(
                numbers[index], len(answer), answer[-1] in self.passes.ends, {_SCORE: scores[index]}, scores[index],
                question=self._questions.train[rows[index]].alone, text=texts[index],
            )
            for index, answer in enumerate(part.answers[:counted])
        ]  # fmt: skip

    def measured(self, logs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the means over the samples since the last report, and writes the samples of the last step. A collective."""
        if "loss" not in logs:
            return {}
        self._write(self.trainer.state.global_step, self._drawn, self._scores)
        return self._means.take()
