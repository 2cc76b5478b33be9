"""On-policy distillation: learns the probabilities that a teacher gives to the tokens of samples of the model itself.

The loss of a token is a divergence between the probabilities of teacher and student (Agarwal et al. 2024); that of a step is one
mean over the tokens of the global batch. Both models compute their logits by their own forward passes, and not from the weights of
their heads as trl's trainer does, so that adapters of heads and all that a model does to its logits count.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from training.batches.layout import base_of, evaluating
from training.run_folder.events import Metrics
from training.trainer import overlap
from training.trainer.evaluation import Means
from training.trainer.generation import Choose, left_padded
from training.trainer.jensen_shannon import token_measures
from training.trainer.sample_means import SampleMeans, of_samples
from training.trainer.sampling_trainer import HELD_OUT, Batch, HeldOutSamples, SamplingTrainer, prompts

_OF_TOKENS = ("entropy", "teacher_logprob")


class DistillationRun(SamplingTrainer, HeldOutSamples):
    """A trainer whose teacher is a whole, frozen model on the rank's device."""

    _of_held_out: Means
    _teacher_seconds = 0.0

    def __init__(self, *, teacher: PreTrainedModel | PeftModel, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.teacher = teacher
        self._vocabulary = min(sizes := [_vocabulary(self.model), _vocabulary(teacher)])
        self._means = SampleMeans()
        if max(sizes) > self._vocabulary:
            message = (
                "The vocabularies are padded to {:,} tokens (model) and {:,} (teacher): the first {:,} are compared."
            )
            self.context.report.note(message.format(*sizes, self._vocabulary))

    def before_first_step(self) -> None:
        """Measures how probable the teacher finds samples of the untrained model, and reports it as step 0.

        Raises:
            StopRequested: a stop is requested meanwhile.
        """
        super().before_first_step()
        config, report = self.context.config, self.context.report
        if not config.baseline_prompts:
            return
        means = SampleMeans()
        with report.during("sampling"):
            for batch, answers, repeats in self.first_drawn():
                means.add(self._of_samples(batch, answers, repeats))
        values = means.take()
        del values["loss"]  # which is that of steps
        report.for_run(Metrics(step=0, values=dict(values)))
        report.note(overlap.note(values, len(self.first_samples())))
        for sentence in overlap.warnings(values, config):
            report.warn(sentence)

    def sampled(self, batches: list[Batch], answers: list[list[list[int]]], seconds: float) -> list[Batch]:
        """The samples of a step's micro batches."""
        counted = answers[: len(answers) - self.empty_in_step(len(batches))]
        self._means.add(of_samples([answer for part in counted for answer in part], self.ends, self.args.device))
        self._means.add_seconds("generate_seconds", seconds, steps=1)
        return [self.padded(list(prompts(batch)), part) for batch, part in zip(batches, answers, strict=True)]

    def continued(self, tokens: Sequence[list[int]], choose: Choose) -> list[list[int]]:
        """As in any `SamplingTrainer`, of the tokens that both models have."""
        return super().continued(tokens, lambda logits, length: choose(logits[:, : self._vocabulary], length))

    def model_loss(self, model: torch.nn.Module, inputs: Batch) -> tuple[torch.Tensor, Any]:
        """Returns the mean divergence over the tokens of the samples of a micro batch, and no outputs."""
        if "completion_ids" not in inputs:  # the probe's prompts
            tokens = list(prompts(inputs))
            inputs = self._prepare_inputs(self.padded(tokens, self.longest(len(tokens))))
        means = self._compared(model, inputs)
        if self.step_weights is not None:
            counts = self.step_weights.peek() != 0
            self._means.add({name: (means[name][0], means[name][1] * counts) for name in _OF_TOKENS})
            self._means.add_seconds("teacher_seconds", self._teacher_seconds)
        return means["loss"][0], {}

    def _compared(self, model: torch.nn.Module, inputs: Batch) -> Means:
        """The means over the tokens of the samples: the loss and what else is measured."""
        began = self._clock()
        with torch.no_grad():
            others = self._logits(self.teacher, inputs)
        self._teacher_seconds = self._clock() - began
        own = self._logits(model, inputs)
        # The logits after the last token predict nothing; without them the rest would be copied.
        drawn, mask = (torch.nn.functional.pad(inputs[name], (0, 1)) for name in ("completion_ids", "completion_mask"))
        config, flat = self.context.config, mask.flatten().bool()
        measures = token_measures(
            own.flatten(0, 1), others.flatten(0, 1), drawn.flatten(), config.jsd_coefficient, config.temperature
        )
        count = mask.sum()
        means = [torch.where(flat, values, 0).sum() / count for values in measures]
        return {name: (mean, count) for name, mean in zip(("loss", *_OF_TOKENS), means, strict=True)}

    def _logits(self, model: Any, inputs: Batch) -> torch.Tensor:
        """The logits from the prompt's last token on, of (rows, length of the samples + 1, vocabulary)."""
        tokens = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        kept = inputs["completion_ids"].shape[1] + 1
        arguments = left_padded(self.accelerator.unwrap_model(model), mask, kept)
        logits: torch.Tensor = model(input_ids=tokens, use_cache=False, **arguments).logits
        return logits[:, -kept:]

    def _clock(self) -> float:
        """The time in seconds when the device has done its work."""
        if self.args.device.type == "cuda":
            torch.cuda.synchronize(self.args.device)
        return time.perf_counter()

    def items(self, inputs: Batch) -> torch.Tensor:
        """Returns the number of the samples' tokens."""
        tokens: torch.Tensor = inputs["completion_mask"].sum()
        return tokens

    def held_out_loss(self, inputs: Batch) -> torch.Tensor:
        """Returns the mean divergence on one sample of each prompt, drawn with the same random numbers at each evaluation."""
        self._of_held_out = self._of_samples(inputs, self.drawn(inputs, HELD_OUT))
        return self._of_held_out["loss"][0]

    def _of_samples(self, batch: Batch, answers: list[list[int]], repeats: int = 0) -> Means:
        """The means over samples outside of training, of which the last `repeats` do not count. A collective."""
        counted = len(answers) - repeats
        inputs = self._prepare_inputs(self.padded(list(prompts(batch)), answers))
        inputs["completion_mask"][counted:] = 0
        with evaluating(self.model), self.compute_loss_context_manager():
            means = self._compared(self.model, inputs)
        self.forget_order()
        return means | of_samples(answers[:counted], self.ends, self.args.device)

    def measures(self, loss: torch.Tensor, inputs: Batch) -> Means:  # noqa: ARG002 it was measured on the samples
        """Returns the loss and what else was measured on the samples of a batch."""
        return self._of_held_out

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Also reports the means over the samples since the last report. A collective."""
        super().log(logs | self._means.take() if "loss" in logs else logs, start_time)


def _vocabulary(model: Any) -> int:
    return int(base_of(model).config.get_text_config().vocab_size)
