"""Makes the loss of an optimizer step one mean over its global batch, however it is split into micro batches and ranks.

transformers relies on the model to divide by `num_items_in_batch` if its forward takes **kwargs. Many models ignore it (all
classifiers, T5, BART and other encoder-decoders), so their loss grows with accumulation and ranks. So does any auxiliary loss
that a model adds to its token loss, such as a router's load-balancing loss.

Notation: a step has M micro batches on all ranks, R of them not empty. Micro batch i has n_i items (tokens with loss, or rows;
with loss weights, the sum of its tokens' weights); N is their total. The step's loss is sum_i S_i / N + sum_i A_i / R, where S_i
is the (weighted) sum of the losses of the items and A_i the auxiliary loss. The Trainer divides by accumulation and averages over
ranks, that is, divides by M. So S_i / n_i has the weight n_i M / N, and A_i the weight M / R. A model that returns their sum with
num_items_in_batch in place of n_i gets N / R for it, and both have the weight M / R.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from transformers import Trainer
from transformers.trainer_utils import EvalLoopOutput

from training.batches.layout import evaluating
from training.batches.sets import HeldOutBatches, RankBatches, Sets
from training.ranks.sequence_parallel import own_part
from training.run_folder.events import LOSS_OF
from training.trainer.evaluation import ItemMean, Means

_RELATIVE_DIFFERENCE = 1e-3  # a model that ignores the count returns the same loss


class StepWeights:
    """The weights of this rank's micro batches in one optimizer step.

    `counts` are the items of this rank's micro batches, of shape (accumulation,), 0 for an empty one; `totals` of shape (2,)
    are N and R, over all ranks; `micro_batches` is M. `divides` means that the model divides by `num_items_in_batch`.
    """

    def __init__(self, counts: torch.Tensor, totals: torch.Tensor, micro_batches: int, *, divides: bool) -> None:
        # Loss weights may add up to less than 1; only an empty step needs another divisor.
        items, filled = torch.where(totals > 0, totals, 1).unbind()
        self.num_items = items / filled if divides else None
        self._of_filled = micro_batches / filled
        weights = (counts > 0) * self._of_filled if divides else counts / items * micro_batches
        self._weights = deque(weights.unbind())

    def peek(self) -> torch.Tensor:
        """Returns the weight of the next micro batch, of shape ()."""
        return self._weights[0]

    def peek_auxiliary(self) -> torch.Tensor:
        """Returns the weight of the next micro batch's auxiliary loss, of shape ()."""
        return torch.where(self.peek() > 0, self._of_filled, 0.0)

    def next(self) -> torch.Tensor:
        """Returns the weight of the next micro batch and removes it."""
        return self._weights.popleft()


class ModelLoss(NamedTuple):
    """A micro batch's mean loss over its items, the model's outputs, and what is added once per micro batch; losses of shape ().

    `auxiliary` is 0 where `items` has the same weight and includes it.
    """

    items: torch.Tensor
    outputs: Any
    auxiliary: torch.Tensor | float = 0.0


class GlobalBatchTrainer(Trainer):  # type: ignore[misc]
    """A Trainer whose training and evaluation losses are means over items, independent of batch split and ranks.

    `sequence_shares` processes share each sequence. `divides_by_items` is True if the model divides its token loss by
    `num_items_in_batch` (see `divides_by_count`).
    """

    sequence_shares = 1
    held_out_sets: Sets | None = None
    """The data sets of the held-out rows, if known; of several, the loss of each is evaluated too."""
    divides_by_items = False
    step_weights: StepWeights | None = None
    _batches: RankBatches | None = None
    _item_mean: ItemMean | None = None  # during an evaluation
    _held_out: HeldOutBatches | None = None

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.takes_num_items = bool(vars(self)["model_accepts_loss_kwargs"])
        # This class does the division. The Trainer then divides by accumulation, and gradients are averaged over ranks.
        self.model_accepts_loss_kwargs = False

    def items(self, inputs: dict[str, Any]) -> torch.Tensor:
        """Returns the number of items (tokens or rows) over which a micro batch's loss is a mean, of shape ()."""
        raise NotImplementedError

    def get_batch_samples(self, *arguments: Any) -> tuple[list[Any], None]:
        """Returns this rank's micro batches of the next optimizer step, and sets their weights for `compute_loss`."""
        batches, _ = super().get_batch_samples(*arguments)
        counts = [self.items(batch) for batch in batches]
        self.step_weights = self.weigh(counts, divides=self.divides_by_items) if batches else None
        return batches, None

    def _get_num_items_in_batch(self, *_: Any) -> None:
        return None

    def weigh(self, items: list[torch.Tensor], *, divides: bool = False) -> StepWeights:
        """Returns the weights of this rank's micro batches of a step, given their numbers of `items`; a collective."""
        counts = torch.stack(items).to(self.args.device, torch.float32)
        counts[len(items) - self.empty_in_step(len(items)) :] = 0
        if self.sequence_shares > 1:
            from deepspeed.utils import groups

            dist.all_reduce(counts, group=groups._get_sequence_parallel_group())
        totals = torch.stack([counts.sum(), (counts > 0).sum().to(counts)])
        if self.args.world_size > 1:
            dist.all_reduce(totals)
            totals /= self.sequence_shares
        micro_batches = len(items) * self.args.world_size // self.sequence_shares
        return StepWeights(counts, totals, micro_batches, divides=divides)

    def empty_in_step(self, micro_steps: int) -> int:
        """The number of this rank's last micro batches in the next step that have no rows, at the end of an epoch."""
        if self._batches is None or not self._batches.empty_at_end:
            return 0
        accumulation, repeats = self.args.gradient_accumulation_steps, self._batches.iterations
        done = (self.state.global_step % -(-len(self._batches) // accumulation)) * accumulation
        is_last = done + repeats * micro_steps >= len(self._batches)
        return self._batches.empty_at_end if is_last else 0

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,  # noqa: ARG002 - Trainer's parameter; step_weights has the count
    ) -> Any:
        """Returns the micro batch's share of the step's loss, times M; in an evaluation or outside a step its own mean."""
        step = self.step_weights if model.training else None
        if step and step.num_items is not None:
            inputs = {**inputs, "num_items_in_batch": step.num_items}
        loss, outputs, auxiliary = self.model_loss(model, inputs)
        loss = loss + auxiliary if step is None else auxiliary * step.peek_auxiliary() + loss * step.next()
        return (loss, outputs) if return_outputs else loss

    def model_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> ModelLoss:
        """Returns a micro batch's loss and the model's outputs."""
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True)
        return ModelLoss(loss, outputs)

    def training_pass(self, model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        """Runs one forward and backward pass outside a step, for the probe."""
        self.step_weights = None
        loss: torch.Tensor = super().training_step(model, inputs)
        return loss

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Loads this rank's `_batches`; accelerate's loader would repeat rows at the end of an epoch."""
        assert self._batches
        collate, size = self.data_collator, self.sequence_shares
        if size > 1:
            collate = own_part(collate, self._train_batch_size, size, self.args.process_index)
        return self.loader(self.train_dataset, collate, batch_sampler=self._batches)

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
            output.metrics.update({f"eval_{name}": value for name, value in whole.items()})
            if self.held_out_sets and self.held_out_sets.several:
                sets = zip(self.held_out_sets.names, self.held_out_sets.counts, of_sets, strict=True)
                output.metrics.update({f"eval_{LOSS_OF}{name}": part["loss"] for name, rows, part in sets if rows})
        return output

    def prediction_step(self, model: torch.nn.Module, inputs: dict[str, Any], *arguments: Any, **named: Any) -> Any:
        """Trainer's step; also adds the batch's means, weighted by its items."""
        loss, *rest = super().prediction_step(model, inputs, *arguments, **named)
        assert self._item_mean is not None
        self._item_mean.add(self.measures(loss, inputs))
        return loss, *rest

    def measures(self, loss: torch.Tensor, inputs: dict[str, Any]) -> Means:
        """Returns a batch's means to average in an evaluation.

        A loss over several kinds of items is given in parts named loss and loss_..., which are averaged and then added.
        """
        return {"loss": (loss, self.items(inputs))}

    @property
    def repeats_a_row(self) -> bool:
        """True if the current batch is a repeated row that does not count."""
        if self._item_mean is not None:
            return self._item_mean.repeats
        return self.step_weights is not None and not self.step_weights.peek()


@contextmanager
def weighted_router_loss(trainer: GlobalBatchTrainer) -> Iterator[None]:
    """A context in which the coefficient by which trl's trainers multiply a router's loss has the factor from the weight of the
    micro batch's items, which their whole loss gets, to the weight of its auxiliary loss."""
    (name,) = {"router_aux_loss_coef", "aux_loss_coef"} & vars(trainer).keys() or {""}
    if not name or trainer.step_weights is None or not trainer.model.training:
        yield
        return
    coefficient, items = getattr(trainer, name), trainer.step_weights.peek()
    setattr(trainer, name, coefficient * torch.where(items > 0, trainer.step_weights.peek_auxiliary() / items, 0.0))
    try:
        yield
    finally:
        setattr(trainer, name, coefficient)


def divides_by_count(trainer: GlobalBatchTrainer, model: torch.nn.Module, inputs: dict[str, Any]) -> bool:
    """True if the model divides its loss by `num_items_in_batch`. Runs two forward passes on `inputs`, on every rank."""
    if not trainer.takes_num_items:
        return False
    loss_of_one, loss_of_two = (
        float(own_loss(model, inputs | {"num_items_in_batch": torch.tensor(count, device=trainer.args.device)}))
        for count in (1.0, 2.0)
    )
    return abs(loss_of_one - loss_of_two) > _RELATIVE_DIFFERENCE * abs(loss_of_one)


def own_loss(model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
    """Returns the loss that the model computes itself, without gradient and dropout, of shape ()."""
    with evaluating(model):
        loss: torch.Tensor = model(**inputs)["loss"]
        return loss
