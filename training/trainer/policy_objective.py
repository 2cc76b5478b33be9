"""GRPO: learns from samples that Lathe draws, scores outside the ranks, and compares within their groups (Shao et al. 2024).

Before each optimizer step, every rank draws the samples of its micro batches, and a process of its own scores them. The ranks
exchange the scores, since a group can be spread over micro batches and ranks. The step trains on these samples: trl computes the
loss of each micro batch, and the trainer makes one mean of them, so that it does not depend on the split.

With `num_iterations` further steps train on the same samples. The log probabilities of their tokens before the first of these
steps are those with which trl compares.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from accelerate.utils import set_seed

from training.batches.layout import evaluating
from training.config.run_config import RunConfig
from training.errors import NothingToLearn
from training.rewards.reward_process import DEATHS
from training.run_folder.events import Metrics
from training.trainer import kept_samples
from training.trainer.advantages import Advantages, advantages
from training.trainer.baseline import Baseline, Compared
from training.trainer.evaluation import Means
from training.trainer.kept_samples import KeptSamples
from training.trainer.loss_terms import ROWS, TOKENS, LossTerms
from training.trainer.lost_scores import LostScores
from training.trainer.policy_loss import PolicyLoss
from training.trainer.prompts import SAMPLER_LOGPS, Batch, prompts
from training.trainer.reporting_trainer import ReportingTrainer
from training.trainer.sampling_objective import SamplingObjective
from training.trainer.scorer import Scorer


class PolicyObjective(SamplingObjective):
    """Makes samples more probable that scored better than the others of their group."""

    _unscored = 0  # batches of samples in a row to which no reward applies

    def __init__(self, config: RunConfig, model: Any, *, scorer: Scorer, reference: Any = None, **named: Any) -> None:
        super().__init__(config, model, **named)
        self.policy, self.scorer = PolicyLoss(config, model, self.tokenizer, reference), scorer
        self._held_out_rewards = list[float]()
        self._kept, self._lost = KeptSamples(), LostScores()

    def begin(self, trainer: ReportingTrainer) -> None:
        """Also prepares the reference."""
        super().begin(trainer)
        self.policy.begin(trainer)
        set_seed(self.config.seed, device_specific=True)  # as trl's trainer: each rank has dropout of its own

    def placed(self) -> dict[str, str]:
        """Also takes the model as it was wrapped."""
        self.policy.placed(self.trainer)
        return super().placed()

    def before_first_step(self) -> None:
        """Also checks that a new adapter does not change the model."""
        self.policy.check_reference(self.trainer)
        super().before_first_step()

    @contextmanager
    def running(self) -> Iterator[None]:
        """A context in which the process that scores the samples runs."""
        with self.scorer:
            yield
        self.tell(self._lost.at_end())

    def marks(self) -> dict[str, Any]:
        """That samples have no score, if they are too many."""
        return self._lost.summary()

    def baseline(self) -> dict[str, float]:
        """Also checks that their rewards differ."""
        report, scorer, start = self.trainer.context.report, self.scorer, time.perf_counter()
        with report.during("sampling"):
            drawn, rows = self._first()
            baseline = Baseline(drawn, self.config, time.perf_counter() - start)
            report.for_run(Metrics(step=0, values=dict(drawn.metrics())))
            self.samples.write(0, drawn.samples, drawn.values)
            baseline.check(
                lambda: Compared(scorer.of_expected(rows), scorer.of_wrong(rows), scorer.have_answers(rows)),
                scorer.causes,
            )
        report.note(baseline.note(self.trainer.state.max_steps))
        for warning in baseline.warnings():
            report.warn(warning)
        return drawn.metrics()

    def _first(self) -> tuple[Advantages, list[int]]:
        """The samples of all ranks to the first prompts, which the first steps draw again, and the rows of these prompts."""
        parts = list(self.first_drawn())
        rows, samples = (
            [number for batch, *_ in parts for number in batch[name].tolist()] for name in ("row", "sample")
        )
        answers = [answer for _, part, _ in parts for answer in part]
        repeats = sum(count for *_, count in parts)
        ends = self.passes.ends
        scored = self.scorer.scored(rows, samples, answers, ends=ends, repeats=repeats, with_texts=True)
        asked = sorted({self.trainer.train_dataset[index]["row"] for index in self.first_samples()})
        return advantages(scored, self.config), asked

    def batches(self, batches: list[Batch]) -> list[Batch]:
        """The micro batches of the next step: with new samples, or with those of the step before."""
        samples = self._samples_again(batches) if self._trains_again else []
        if not samples:
            samples = super().batches(batches)
            self._kept.keep(samples)
        return samples

    @property
    def _trains_again(self) -> bool:
        """True if the next step trains on the samples of the one before."""
        again: bool = self.trainer.state.global_step % self.config.iterations != 0
        return again

    def _samples_again(self, batches: list[Batch]) -> list[Batch]:
        """The samples of the step before; after a resume those of the checkpoint."""
        resumed = self.trainer.resumed_from
        if resumed and (saved := kept_samples.read(Path(resumed))):
            samples, old = [], []
            for batch in batches:
                numbers = batch["sample"].tolist()
                answers, values, logps, sampler = kept_samples.restored(numbers, saved, self.passes.padding)
                own = {"sample": batch["sample"]} | ({SAMPLER_LOGPS: sampler} if self.vllm else {})
                samples.append(self._batch(list(prompts(batch)), answers, values) | own)
                old.append(logps)
            self._kept.keep(samples, old)
        return self._kept.again()

    def further_files(self) -> dict[str, str]:
        """The samples on which the next step trains again. A collective."""
        return {kept_samples.FILE: self._kept.text()} if self._trains_again else {}

    def sampled(self, batches: list[Batch], answers: list[list[list[int]]], seconds: float) -> list[Batch]:
        """The samples of a step's micro batches, with their advantages."""
        drawn, trainer, state = time.perf_counter(), self.trainer, self.trainer.state
        step = state.global_step + 1
        # As the trainer decides it after each of the steps that train on these samples.
        logged = step == 1 or -step % state.logging_steps < self.config.iterations
        scored = self.scorer.scored(
            torch.cat([batch["row"] for batch in batches]).tolist(),
            torch.cat([batch["sample"] for batch in batches]).tolist(),
            [answer for part in answers for answer in part],
            ends=self.passes.ends,
            repeats=sum(map(len, answers[len(answers) - trainer.empty_in_step(len(batches)) :])),
            with_texts=logged,
        )
        found = advantages(scored, self.config)
        self._check_scored(found.metrics()["unscored"])
        self.tell(self.alarms.after_step(found.metrics()) + self._lost.add(step, found.samples))
        if logged:
            self.samples.write(step, found.samples, found.values)
        measured = {"sampler_difference": self.vllm.difference} if self.vllm else {}
        measured |= {"generate_seconds": seconds, "score_seconds": time.perf_counter() - drawn}
        self.policy.note(found.metrics() | measured)
        own = iter(found.of(scored[trainer.args.process_index]))
        return [
            self._batch(list(prompts(batch)), part, [next(own) for _ in part])
            | {name: batch[name] for name in ("sample", SAMPLER_LOGPS) if name in batch}
            for batch, part in zip(batches, answers, strict=True)
        ]

    def _check_scored(self, unscored: float) -> None:
        """Checks that rewards still apply; `unscored` is the share of a step's samples without any.

        Raises:
            NothingToLearn: they applied to no sample of several steps in a row.
        """
        self._unscored = self._unscored + 1 if unscored == 1 else 0
        if self._unscored == DEATHS:
            message = (
                f"gave no sample of {DEATHS} steps in a row a reward, so that nothing is learned. {self.scorer.causes}"
            )
            fix = "Mend the rewards (lathe reward tries them on rows), and clone the run. If a judge did not answer, resume it."
            raise NothingToLearn("rewards", self.config.rewards, message.strip(), fix)

    def _batch(self, tokens: Sequence[list[int]], answers: Sequence[list[int]], values: Sequence[float]) -> Batch:
        """The batch as trl's loss takes it."""
        batch = self.passes.padded(tokens, answers) | {"advantages": torch.tensor(list(values))}
        if self.config.kl_coefficient:
            batch |= {"ref_per_token_logps": self._reference_logps(batch)}
        return batch

    def _reference_logps(self, batch: Batch) -> torch.Tensor:
        """The log probabilities of the samples' tokens, of (rows, length), before training: without the adapter, or with full
        weights by the reference."""
        trainer, policy, model = self.trainer, self.policy, cast(Any, self.trainer.unwrapped)
        inputs = trainer._prepare_inputs(batch)
        if policy.reference is not None:
            with torch.no_grad():
                return policy.forward(policy.reference, inputs, alone=True).logps
        with evaluating(trainer.model), model.disable_adapter():
            logps = policy.forward(trainer.model, inputs, alone=True).logps
        self.passes.forget_order()
        return logps

    def largest(self, batch: Batch) -> Batch:
        """The prompts of a batch with samples of the greatest length."""
        tokens = list(prompts(batch))
        return self._batch(tokens, self.passes.longest(len(tokens)), [1.0] * len(tokens))

    def items(self, batch: Batch) -> dict[str, torch.Tensor]:
        """The number of tokens, or of samples, over which the loss is a mean."""
        if self.policy.over == TOKENS:
            return {TOKENS: batch["completion_mask"].sum()}
        return {ROWS: torch.tensor(self.size(batch)[1])}

    def loss(self, model: torch.nn.Module, batch: Batch) -> LossTerms:
        """Returns trl's loss of a micro batch of samples, and that of a router."""
        found = self.policy.forward(model, batch)
        self._kept.note(found.logps)
        return LossTerms(self.policy.terms(found, batch, batch.get(SAMPLER_LOGPS)))

    def held_out(self, model: torch.nn.Module, batch: Batch) -> Means:  # noqa: ARG002 it answers, wrapped or not
        """Answers the prompts of a batch greedily. Returns minus the mean reward of those to which one applies as the loss, and the
        mean reward."""
        answers = self.vllm.greedy(batch) if self.vllm else self.passes.greedy(batch)
        rewards = [reward for reward in self.scorer.held_out(batch["row"].tolist(), answers) if reward is not None]
        self._held_out_rewards += rewards
        loss = -torch.tensor(rewards or [0.0], device=self.trainer.args.device).mean()
        rows = loss.new_tensor(float(len(rewards)))
        return {"loss": (loss, rows), "reward": (-loss, rows)}

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """A context after which a fall of the rewards of held-out prompts is a warning."""
        self._held_out_rewards = []
        with super().evaluating():
            yield
        spread = float(np.std(self._held_out_rewards)) if self._held_out_rewards else 0.0
        self.tell(self.alarms.after_evaluation(self.trainer.state.log_history, spread, len(self.trainer.eval_dataset)))

    def measured(self, logs: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Returns the means of what was measured on samples."""
        return self.policy.measured(trains=self.trainer.model.training)

    def forget(self) -> None:
        """Forgets what trl's loss has measured."""
        self.policy.forget()
