"""trl's GRPO trainer on samples that Lathe draws, scores outside the ranks, and compares within their groups.

Before each optimizer step, every rank draws the samples of its micro batches, and a process of its own scores them. The ranks
exchange the scores, since a group can be spread over micro batches and ranks. The step trains on these samples: trl computes the
loss of each micro batch, and `GlobalBatchTrainer` makes one mean of them, so that it does not depend on the split.

With `num_iterations` further steps train on the same samples. The log probabilities of their tokens before the first of these
steps are those with which trl compares.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import Trainer
from trl.models.utils import prepare_deepspeed, prepare_fsdp
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

from training.batches.layout import evaluating
from training.config.choices import PolicyLoss
from training.errors import NothingToLearn
from training.rewards.reward_process import DEATHS
from training.trainer import kept_samples
from training.trainer.advantages import Advantages, advantages
from training.trainer.baseline import take_baseline
from training.trainer.evaluation import Means
from training.trainer.global_batch import ModelLoss, weighted_router_loss
from training.trainer.kept_samples import KeptSamples
from training.trainer.lost_scores import LostScores
from training.trainer.preference_trainers import PreferenceTrainer
from training.trainer.prompts import SAMPLER_LOGPS, Batch, prompts
from training.trainer.sampling_trainer import HeldOutSamples, SamplingTrainer
from training.trainer.scorer import Scorer


class _Policy(GRPOTrainer):
    """trl's trainer without its own samples: those of a batch are there before the step."""

    loss_is_scaled_for_ga = None  # type: ignore[assignment] # Trainer divides by the accumulation

    def __init__(self, *, data_collator: Any, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.data_collator = data_collator

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        prepared: dict[str, Any] = Trainer._prepare_inputs(self, inputs)
        return prepared

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        loss: torch.Tensor = Trainer.training_step(self, model, inputs, num_items_in_batch)
        return loss


_LARGEST_RATIO = 2.0
"""Of the model's probability of a token to that with which it was drawn."""


class GRPORun(SamplingTrainer, PreferenceTrainer, HeldOutSamples, _Policy):  # type: ignore[misc]
    """Group relative policy optimization (Shao et al. 2024), with the losses of trl's trainer."""

    placeholder: ClassVar[dict[str, Any]] = {"prompt": "a"}
    _micro_batch: dict[str, Any]
    _rewarded = 0  # rows of the last held-out batch to which a reward applies
    _unscored = 0  # batches of samples in a row to which none applies

    def __init__(self, *, scorer: Scorer, ref_model: Any = None, **arguments: Any) -> None:
        super().__init__(reward_funcs=[_no_reward], **arguments)
        config = self.context.config
        self.ref_model = self._prepared_reference(ref_model) if ref_model is not None else None
        self.beta, self.scorer = config.kl_coefficient, scorer
        self._held_out_rewards = list[float]()
        self._kept, self._lost = KeptSamples(), LostScores()

    def train(self, resume_from_checkpoint: str | None = None, **named: Any) -> Any:
        """Trains; the process that scores the samples ends with it."""
        with self.scorer:
            trained = super().train(resume_from_checkpoint, **named)
        self.tell(self._lost.at_end())
        return trained

    def marks(self) -> dict[str, Any]:
        """That samples have no score, if they are too many."""
        return self._lost.summary()

    def baseline(self) -> dict[str, float]:
        """Also checks that their rewards differ."""
        return take_baseline(self).drawn.metrics()

    def with_samples(self, batches: list[Batch]) -> list[Batch]:
        """The micro batches of the next step: with new samples, or with those of the step before."""
        samples = self._samples_again(batches) if self._trains_again else []
        if not samples:
            samples = super().with_samples(batches)
            self._kept.keep(samples)
        return samples

    @property
    def _trains_again(self) -> bool:
        """True if the next step trains on the samples of the one before."""
        again: bool = self.state.global_step % self.context.config.iterations != 0
        return again

    def _samples_again(self, batches: list[Batch]) -> list[Batch]:
        """The samples of the step before; after a resume those of the checkpoint."""
        if self._resumed_from and (saved := kept_samples.read(Path(self._resumed_from))):
            samples, old = [], []
            for batch in batches:
                answers, values, logps, sampler = kept_samples.restored(batch["sample"].tolist(), saved, self._padding)
                own = {"sample": batch["sample"]} | ({SAMPLER_LOGPS: sampler} if self.vllm else {})
                samples.append(self._batch(list(prompts(batch)), answers, values) | own)
                old.append(logps)
            self._kept.keep(samples, old)
        return self._kept.again()

    def further_files(self) -> dict[str, str]:
        """The samples on which the next step trains again. A collective."""
        return {kept_samples.FILE: self._kept.text()} if self._trains_again else {}

    def _get_per_token_logps_and_entropies(self, *arguments: Any, **named: Any) -> Any:
        """trl's log probabilities; those of the first step on samples are kept, and compared with those of what drew them."""
        values = super()._get_per_token_logps_and_entropies(*arguments, **named)
        self._kept.note(values[0])
        if self.use_vllm:
            self._correct(values[0].detach())
        return values

    def _correct(self, logps: torch.Tensor) -> None:
        """Sets the ratio of the model's probability to the sampler's, by which trl multiplies the loss of a token of the micro
        batch: truncated importance sampling (Yao et al. 2025). `logps` are those of the micro batch, of (rows, length)."""
        ratio = (self._micro_batch.get("old_per_token_logps", logps) - self._micro_batch[SAMPLER_LOGPS]).exp()
        ratio = ratio.nan_to_num(1.0).clamp(max=_LARGEST_RATIO)
        self._micro_batch["importance_sampling_ratio"] = ratio
        mask = self._micro_batch["completion_mask"]
        self._metrics["train"]["sampler_ratio"].append(float((ratio * mask).sum() / mask.sum().clamp(min=1)))

    def sampled(self, batches: list[Batch], answers: list[list[list[int]]], seconds: float) -> list[Batch]:
        """The samples of a step's micro batches, with their advantages."""
        drawn, step = time.perf_counter(), self.state.global_step + 1
        # As the trainer decides it after each of the steps that train on these samples.
        logged = step == 1 or -step % self.state.logging_steps < self.context.config.iterations
        scored = self.scorer.scored(
            torch.cat([batch["row"] for batch in batches]).tolist(),
            torch.cat([batch["sample"] for batch in batches]).tolist(),
            [answer for part in answers for answer in part],
            ends=self.ends,
            repeats=sum(map(len, answers[len(answers) - self.empty_in_step(len(batches)) :])),
            with_texts=logged,
        )
        found = advantages(scored, self.context.config)
        self._check_scored(found.metrics()["unscored"])
        self.tell(self.alarms.after_step(found.metrics()) + self._lost.add(step, found.samples))
        if logged:
            self.samples.write(step, found.samples, found.values)
        measured = {"sampler_difference": self.vllm.difference} if self.vllm else {}
        self._note(found, {"generate_seconds": seconds, "score_seconds": time.perf_counter() - drawn} | measured)
        own = iter(found.of(scored[self.args.process_index]))
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
            raise NothingToLearn("rewards", self.context.config.rewards, message.strip(), fix)

    def _batch(self, tokens: Sequence[list[int]], answers: Sequence[list[int]], values: Sequence[float]) -> Batch:
        """The batch as trl's trainer takes it."""
        batch = self.padded(tokens, answers) | {"advantages": torch.tensor(list(values))}
        if self.beta:
            batch |= {"ref_per_token_logps": self._reference_logps(batch)}
        return batch

    def _prepared_reference(self, reference: Any) -> Any:
        """The reference model of full weights as trl's trainers prepare it: divided among the ranks as the model is."""
        add_fused_lm_head(reference, temperature=self.temperature)
        if self.is_deepspeed_enabled:
            return prepare_deepspeed(reference, self.accelerator)
        if self.is_fsdp_enabled:
            return prepare_fsdp(reference, self.accelerator)
        return self.accelerator.prepare_model(reference, evaluation_mode=True)

    def _reference_logps(self, batch: dict[str, Any]) -> torch.Tensor:
        """The log probabilities of the samples' tokens, of (rows, length), before training: without the adapter, or with full
        weights by the reference."""
        inputs = self._prepare_inputs(batch)
        tokens = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        kept = inputs["completion_ids"].shape[1]
        of = self._get_per_token_logps_and_entropies
        if self.ref_model is not None:
            with torch.no_grad():
                return of(self.ref_model, tokens, mask, kept)[0]  # type: ignore[no-any-return]
        with evaluating(self.model), self.accelerator.unwrap_model(self.model).disable_adapter():
            logps: torch.Tensor = of(self.model, tokens, mask, kept)[0]
        self.forget_order()
        return logps

    def model_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> ModelLoss:
        """Returns trl's loss of a micro batch as a mean over its `items`, and no outputs."""
        if "completion_ids" not in inputs:  # the probe's prompts
            inputs = self._prepare_inputs(self._longest(inputs))
        # trl divides by the tokens of all ranks and by the accumulation, which GlobalBatchTrainer does itself.
        parts = self.args.world_size * self.args.steps_per_generation
        self._micro_batch = inputs | {"num_items_in_batch": inputs["completion_mask"].sum() * parts}
        self.use_vllm = SAMPLER_LOGPS in inputs
        with weighted_router_loss(self):
            loss: torch.Tensor = self._compute_loss(model, self._micro_batch)  # type: ignore[no-untyped-call]
        self.use_vllm = False
        return ModelLoss(loss * self.current_gradient_accumulation_steps, {})

    def _longest(self, inputs: Batch) -> Batch:
        tokens = list(prompts(inputs))
        return self._batch(tokens, self.longest(len(tokens)), [1.0] * len(tokens))

    def items(self, inputs: dict[str, Any]) -> torch.Tensor:
        """The number of tokens or samples over which the loss is a mean."""
        match self.context.config.policy_loss:
            case PolicyLoss.DAPO | PolicyLoss.CISPO if "completion_mask" in inputs:
                tokens: torch.Tensor = inputs["completion_mask"].sum()
                return tokens
            case PolicyLoss.BNPO:
                return torch.tensor(1)
            case _:
                return torch.tensor(self.count(inputs)[1])

    def held_out_loss(self, inputs: Batch) -> torch.Tensor:
        """Answers the prompts of a batch greedily, and returns minus the mean reward of those to which one applies, of shape ()."""
        answers = self.greedy(inputs)
        rewards = [reward for reward in self.scorer.held_out(inputs["row"].tolist(), answers) if reward is not None]
        self._rewarded = len(rewards)
        self._held_out_rewards += rewards
        return -torch.tensor(rewards or [0.0], device=self.args.device).mean()

    def evaluate(self, *arguments: Any, **named: Any) -> dict[str, float]:
        """Evaluates, and warns if the rewards of held-out prompts fall."""
        self._held_out_rewards = []
        metrics: dict[str, float] = super().evaluate(*arguments, **named)
        spread = float(np.std(self._held_out_rewards)) if self._held_out_rewards else 0.0
        self.tell(self.alarms.after_evaluation(self.state.log_history, spread, len(self.eval_dataset)))
        return metrics

    def measures(self, loss: torch.Tensor, inputs: dict[str, Any]) -> Means:  # noqa: ARG002 the rows with a reward count
        """Returns minus the mean reward as the loss, and the mean reward."""
        rows = loss.new_tensor(float(self._rewarded))
        return {"loss": (loss, rows), "reward": (-loss, rows)}

    def _note(self, found: Advantages, seconds: dict[str, float]) -> None:
        for name, value in (found.metrics() | seconds).items():
            self._metrics["train"][name].append(value)


def _no_reward(**_: Any) -> list[float]:
    """Stands in for reward functions, of which trl's constructor wants one."""
    return []
