"""trl's GRPO trainer on samples that Lathe draws, scores outside the ranks, and compares within their groups.

Before each optimizer step, every rank draws the samples of its micro batches, and a process of its own scores them. The ranks
exchange the scores, since a group can be spread over micro batches and ranks. The step trains on these samples: trl computes the
loss of each micro batch, and `GlobalBatchTrainer` makes one mean of them, so that it does not depend on the split.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import Trainer, TrainerState
from trl.trainer.grpo_trainer import GRPOTrainer

from training.batches.layout import evaluating
from training.config.choices import PolicyLoss, Strategy
from training.errors import ReviewRequested
from training.run_folder.events import Note
from training.trainer.advantages import Advantages, advantages
from training.trainer.alarms import Alarms
from training.trainer.answering import end_tokens
from training.trainer.baseline import take_baseline
from training.trainer.evaluation import Means
from training.trainer.generation import Sampler, continued
from training.trainer.preference_trainers import PreferenceTrainer
from training.trainer.samples import SampleWriter
from training.trainer.scorer import Scorer

_SEEDS = 11  # differs from the other seeds (training/tokens)


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

    def prediction_step(self, model: Any, inputs: dict[str, Any], *_: Any, **__: Any) -> tuple[Any, None, None]:  # noqa: ARG002
        """Answers held-out prompts greedily; the loss is minus the mean reward."""
        loss: torch.Tensor = -self.held_out_reward(inputs)
        return loss, None, None


class GRPORun(PreferenceTrainer, _Policy):  # type: ignore[misc]
    """Group relative policy optimization (Shao et al. 2024), with the losses of trl's trainer."""

    placeholder: ClassVar[dict[str, Any]] = {"prompt": "a"}
    _rewarded = 0  # rows of the last held-out batch to which a reward applies

    def __init__(self, *, scorer: Scorer, **arguments: Any) -> None:
        super().__init__(reward_funcs=[_no_reward], **arguments)
        config = self.context.config
        self.beta, self.scorer = config.kl_coefficient, scorer
        self.ends = end_tokens(self.model.generation_config, self.processing_class)
        self._alarms, self._held_out_rewards = Alarms(config), list[float]()
        self._padding = int(self.processing_class.pad_token_id)

    def train(self, resume_from_checkpoint: str | None = None, **named: Any) -> Any:
        """Trains; the process that scores the samples ends with it."""
        with self.scorer:
            return super().train(resume_from_checkpoint, **named)

    def on_model_placed(self, placement: dict[str, Any], state: TrainerState) -> None:
        """Called when the model is wrapped and placed: the first and last step are known."""
        super().on_model_placed(placement, state)
        generations = self.context.config.num_generations
        self.samples = SampleWriter(self.context.report, generations, state.global_step, state.max_steps)

    def before_first_step(self) -> None:
        """Draws samples of the untrained model, if the run wants them.

        Raises:
            UserError: nothing can be learned from them.
            StopRequested: the run stops for a person to read them.
        """
        super().before_first_step()
        config = self.context.config
        if config.baseline_prompts:
            self._alarms.begin(take_baseline(self).drawn.metrics())
            if config.stop_after_baseline:
                raise ReviewRequested

    def first_samples(self, most: int) -> list[int]:
        """The first samples of the run, as indexes of its data set: those of whole prompts."""
        assert self._batches
        return [int(index) for index in self._batches.order.epoch(0)[:most]]

    def get_batch_samples(self, batches: Iterator[Any], *arguments: Any) -> tuple[list[Any], None]:
        """The micro batches of a step, with samples in place of prompts."""
        count, *others = arguments
        prompts = [batch for _, batch in zip(range(count), batches, strict=False)]
        return super().get_batch_samples(iter(self._sampled(prompts)), len(prompts), *others)

    def _sampled(self, batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The samples of a step's micro batches, with their advantages."""
        if not batches:
            return []
        start = time.perf_counter()
        self.throughput.add(torch.tensor(0), 0)  # its clock runs while samples are drawn
        answers = [self.drawn(batch) for batch in batches]  # by micro batch, which bounds the memory
        drawn, step = time.perf_counter(), self.state.global_step + 1
        logged = step == 1 or step % self.state.logging_steps == 0  # as the trainer decides it after the step
        scored = self.scorer.scored(
            torch.cat([batch["row"] for batch in batches]).tolist(),
            torch.cat([batch["sample"] for batch in batches]).tolist(),
            [answer for part in answers for answer in part],
            ends=self.ends,
            repeats=len(answers[-1]) if self._ends_empty(len(batches)) else 0,
            with_texts=logged,
        )
        found = advantages(scored, self.context.config)
        self._report(self._alarms.after_step(found.metrics()))
        if logged:
            self.samples.write(step, found)
        self._note(found, {"generate_seconds": drawn - start, "score_seconds": time.perf_counter() - drawn})
        own = iter(found.of(scored[self.args.process_index]))
        return [
            self._batch(list(_prompts(batch)), part, [next(own) for _ in part])
            for batch, part in zip(batches, answers, strict=True)
        ]

    def drawn(self, batch: dict[str, Any]) -> list[list[int]]:
        """One sample for each prompt of a micro batch, as tokens."""
        config, device = self.context.config, self.args.device
        epoch = self._batches.epoch if self._batches else 0
        seeds = [(config.seed, epoch, sample, _SEEDS) for sample in batch["sample"].tolist()]
        sampler = Sampler(seeds, config.max_completion_length, config.temperature, device)
        return self._continued(list(_prompts(batch)), sampler)

    def _continued(self, prompts: Sequence[list[int]], choose: Any) -> list[list[int]]:
        longest = self.context.config.max_completion_length
        with evaluating(self.model), self.compute_loss_context_manager():
            answers = continued(self.model, prompts, longest, self.ends, self._padding, self.args.device, choose)
        self._forget_order()
        return answers

    def _forget_order(self) -> None:
        """Lets ZeRO-3 record again in which order a step needs the weights: what it has recorded are forward passes alone."""
        if self.context.config.strategy is Strategy.ZERO3:
            coordinator = self.model_wrapped.optimizer.parameter_offload.get_param_coordinator()
            if not coordinator.is_invalid_trace():
                coordinator._invalidate_trace()

    def _batch(
        self, prompts: Sequence[list[int]], answers: Sequence[list[int]], values: Sequence[float]
    ) -> dict[str, Any]:
        """The batch as trl's trainer takes it: prompts padded on the left, samples on the right, of (rows, length)."""
        before, before_mask = _padded(prompts, self._padding, left=True)
        after, after_mask = _padded(answers, self._padding, left=False)
        batch = {
            "prompt_ids": before,
            "prompt_mask": before_mask,
            "completion_ids": after,
            "completion_mask": after_mask,
            "advantages": torch.tensor(list(values)),
        }
        if self.beta:
            batch |= {"ref_per_token_logps": self._reference_logps(batch)}
        return batch

    def _reference_logps(self, batch: dict[str, Any]) -> torch.Tensor:
        """The log probabilities of the samples' tokens without the adapter, of (rows, length)."""
        inputs = self._prepare_inputs(batch)
        tokens = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        kept = inputs["completion_ids"].shape[1]
        with evaluating(self.model), self.accelerator.unwrap_model(self.model).disable_adapter():
            logps: torch.Tensor = self._get_per_token_logps_and_entropies(self.model, tokens, mask, kept)[0]
        self._forget_order()
        return logps

    def model_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> tuple[torch.Tensor, Any]:
        """Returns trl's loss of a micro batch as a mean over its `items`, and no outputs."""
        if "completion_ids" not in inputs:  # the probe's prompts
            inputs = self._prepare_inputs(self._longest(inputs))
        # trl divides by the tokens of all ranks and by the accumulation, which GlobalBatchTrainer does itself.
        parts = self.args.world_size * self.args.steps_per_generation
        inputs = inputs | {"num_items_in_batch": inputs["completion_mask"].sum() * parts}
        loss: torch.Tensor = self._compute_loss(model, inputs)  # type: ignore[no-untyped-call]
        return loss * self.current_gradient_accumulation_steps, {}

    def _longest(self, inputs: dict[str, Any]) -> dict[str, Any]:
        prompts, config = list(_prompts(inputs)), self.context.config
        answer = [self._padding] * config.max_completion_length
        return self._batch(prompts, [answer] * len(prompts), [1.0] * len(prompts))

    def items(self, inputs: dict[str, Any]) -> torch.Tensor:
        """Returns the number of tokens or samples over which the loss is a mean."""
        match self.context.config.policy_loss:
            case PolicyLoss.DAPO | PolicyLoss.CISPO if "completion_mask" in inputs:
                tokens: torch.Tensor = inputs["completion_mask"].sum()
                return tokens
            case PolicyLoss.BNPO:
                return torch.tensor(1)
            case _:
                return torch.tensor(self.count(inputs)[1])

    def count(self, inputs: dict[str, Any]) -> tuple[torch.Tensor, int]:
        """Counts the tokens of prompts and samples; a sample is one row."""
        masks = [inputs[name] for name in ("prompt_mask", "completion_mask", "attention_mask") if name in inputs]
        return torch.stack([mask.sum() for mask in masks]).sum(), len(masks[0])

    def held_out_reward(self, inputs: dict[str, Any]) -> torch.Tensor:
        """Answers the prompts of a batch greedily, and returns the mean reward of those to which one applies, of shape ()."""
        answers = self._continued(list(_prompts(inputs)), lambda logits, _: logits.argmax(dim=-1))
        rewards = [reward for reward in self.scorer.held_out(inputs["row"].tolist(), answers) if reward is not None]
        self._rewarded = len(rewards)
        self._held_out_rewards += rewards
        return torch.tensor(rewards or [0.0], device=self.args.device).mean()

    def evaluate(self, *arguments: Any, **named: Any) -> dict[str, float]:
        """Evaluates, and warns if the rewards of held-out prompts fall."""
        self._held_out_rewards = []
        metrics: dict[str, float] = super().evaluate(*arguments, **named)
        spread = float(np.std(self._held_out_rewards)) if self._held_out_rewards else 0.0
        self._report(self._alarms.after_evaluation(self.state.log_history, spread, len(self.eval_dataset)))
        return metrics

    def _report(self, notes: Sequence[Note]) -> None:
        for note in notes:
            self.context.report.for_run(note)

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


def _prompts(batch: dict[str, Any]) -> Iterator[list[int]]:
    for tokens, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
        yield tokens[mask.bool()].tolist()


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
