"""The part of the trainer that makes losses means over the global batch, in steps and in evaluations (see loss_terms.py)."""

from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from transformers import Trainer
from transformers.trainer_utils import EvalLoopOutput

from training.batches.sets import HeldOutBatches, RankBatches, Sets
from training.ranks.sequence_parallel import gradient_factor, own_part, scale_gradient
from training.run_folder.events import LOSS_OF
from training.trainer.evaluation import ItemMean, SetLosses
from training.trainer.loss_terms import BATCHES, StepWeights
from training.trainer.objective import Objective


class GlobalBatchTrainer(Trainer):  # type: ignore[misc]
    """A Trainer whose training and evaluation losses are means over items, independent of batch split and ranks.

    `sequence_shares` processes share each sequence.
    """

    sequence_shares = 1
    held_out_sets: Sets | None = None
    """The data sets of the held-out rows, if known; of several, the loss of each is evaluated too."""
    set_losses: SetLosses | None = None
    item_sets: torch.Tensor | None = None
    """The data set of each item of the current micro batch; None with one data set, and in an evaluation."""
    step_weights: StepWeights | None = None
    rank_batches: RankBatches | None = None
    _item_mean: ItemMean | None = None  # during an evaluation
    _held_out: HeldOutBatches | None = None
    _gradient_factor = 1

    def __init__(self, *, objective: Objective, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.objective = objective
        self.takes_num_items = bool(vars(self)["model_accepts_loss_kwargs"])
        # This class does the division. The Trainer then divides by accumulation, and gradients are averaged over ranks.
        self.model_accepts_loss_kwargs = False

    def get_batch_samples(self, *arguments: Any) -> tuple[list[Any], None]:
        """Returns this rank's micro batches of the next optimizer step, and sets their weights for `compute_loss`."""
        batches, _ = super().get_batch_samples(*arguments)
        batches = self.objective.batches(batches)
        self.step_weights = self._weigh(batches) if batches else None
        return batches, None

    def _get_num_items_in_batch(self, *_: Any) -> None:
        return None

    def _weigh(self, batches: list[Any]) -> StepWeights:
        """Returns the weights of this rank's micro batches of a step; a collective."""
        items = [self.objective.items(batch) for batch in batches]
        kinds = list(items[0])
        counts = torch.stack([torch.stack([one[kind] for one in items]).float() for kind in kinds])
        counts = counts.to(self.args.device, torch.float32)
        counts[:, len(items) - self.empty_in_step(len(items)) :] = 0
        if self.sequence_shares > 1:
            from deepspeed.utils import groups

            dist.all_reduce(counts, group=groups._get_sequence_parallel_group())
        totals = torch.stack([*(of_kind.sum() for of_kind in counts), (counts[0] > 0).sum().to(counts)])
        if self.args.world_size > 1:
            dist.all_reduce(totals)
            totals /= self.sequence_shares
        micro_batches = len(items) * self.args.world_size // self.sequence_shares
        return StepWeights(
            dict(zip(kinds, counts, strict=True)), dict(zip([*kinds, BATCHES], totals, strict=True)), micro_batches
        )

    def empty_in_step(self, micro_steps: int) -> int:
        """The number of this rank's last micro batches in the next step that have no rows, at the end of an epoch."""
        if self.rank_batches is None or not self.rank_batches.empty_at_end:
            return 0
        accumulation, repeats = self.args.gradient_accumulation_steps, self.rank_batches.iterations
        done = (self.state.global_step % -(-len(self.rank_batches) // accumulation)) * accumulation
        is_last = done + repeats * micro_steps >= len(self.rank_batches)
        return self.rank_batches.empty_at_end if is_last else 0

    def share_gradients(self) -> None:
        """Finds out how gradients of shared sequences are summed, once the model is wrapped."""
        self._gradient_factor = gradient_factor(self.model_wrapped, self.sequence_shares)

    def compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any], *_: Any, **__: Any) -> torch.Tensor:
        """Returns the micro batch's share of the step's loss, times M; outside a step its own loss."""
        loss, step = self.objective.loss(model, inputs), self.step_weights
        if step and self.set_losses and self.item_sets is not None and loss.of_items:
            losses, weights = loss.of_items()
            self.set_losses.add(losses, self.item_sets.to(losses.device), step.counts, weights)
        total = loss.total(step.next if step else None)
        if step:
            step.advance()
        return scale_gradient(total, self._gradient_factor) if self._gradient_factor > 1 else total

    def training_pass(self, model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        """Runs one forward and backward pass outside a step, for the probe."""
        self.step_weights = None
        loss: torch.Tensor = super().training_step(model, self.objective.largest(inputs))
        return loss

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Loads this rank's batches; accelerate's loader would repeat rows at the end of an epoch."""
        assert self.rank_batches
        collate, size = self.data_collator, self.sequence_shares
        if size > 1:
            collate = own_part(collate, self._train_batch_size, size, self.args.process_index)
        return self.loader(self.train_dataset, collate, batch_sampler=self.rank_batches)

    def get_sp_size(self) -> int:
        """Returns 1 instead of the processes that share a sequence: the loader of each already has all batches of its group."""
        return 1

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Loads this rank's batches of the held-out rows, in order. An evaluation divides no sequences."""
        rows = self.eval_dataset if eval_dataset is None else eval_dataset
        sets, args = self.held_out_sets or Sets(("",), (len(rows),)), self.args
        self._held_out = HeldOutBatches(sets, args.eval_batch_size, args.process_index, args.world_size)
        return self.loader(rows, self.data_collator, batch_sampler=self._held_out)

    def loader(self, rows: Any, collate: Any, **batches: Any) -> DataLoader[Any]:
        """Loads rows; `batches` are torch's arguments that say which."""
        generator = torch.Generator()  # a loader draws a seed, which must not come from dropout's generator
        pinned = self.args.dataloader_pin_memory
        return DataLoader(rows, collate_fn=collate, pin_memory=pinned, generator=generator, **batches)

    def evaluation_loop(self, dataloader: DataLoader[Any], *arguments: Any, **named: Any) -> EvalLoopOutput:
        """Trainer's loop, with means over items instead of means over batches."""
        count = len(self.held_out_sets.names) if self.held_out_sets else 1
        mean = self._item_mean = ItemMean(self.args.device, len(dataloader), self._held_out, count)
        try:
            output = super().evaluation_loop(dataloader, *arguments, **named)
        finally:
            self._item_mean = None
        if "eval_loss" in output.metrics:
            whole, *of_sets = mean.values()
            whole |= self.objective.of_means(whole)
            output.metrics.update({f"eval_{name}": value for name, value in whole.items()})
            if self.held_out_sets and self.held_out_sets.several:
                sets = zip(self.held_out_sets.names, self.held_out_sets.counts, of_sets, strict=True)
                output.metrics.update({f"eval_{LOSS_OF}{name}": part["loss"] for name, rows, part in sets if rows})
        return output

    def prediction_step(
        self, model: torch.nn.Module, inputs: dict[str, Any], *_: Any, **__: Any
    ) -> tuple[torch.Tensor, None, None]:
        """Adds the means of the next batch of an evaluation. The loss that it returns is replaced by that over all items."""
        assert self._item_mean is not None
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            means = self.objective.held_out(model, inputs)
        self._item_mean.add(means)
        return means["loss"][0], None, None

    @property
    def repeats_a_row(self) -> bool:
        """True if the current batch is a repeated row that does not count."""
        if self._item_mean is not None:
            return self._item_mean.repeats
        return self.step_weights is not None and not self.step_weights.counts
