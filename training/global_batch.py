"""The loss of an optimizer step as one mean over its global batch, however that is split into micro batches and ranks.

transformers leaves the division to the model, by `num_items_in_batch`, for every model whose forward takes **kwargs. Many
ignore it (every classifier, T5, BART and other encoder-decoders), so that their loss grows with accumulation and ranks; what
a model adds after its token loss, such as a router's balancing loss, grows likewise.

Notation: a step has M micro batches on all ranks together, R of them not empty; micro batch i has n_i items (tokens with
loss, or rows), N in all. The step's loss is sum_i S_i / N + sum_i A_i / R, where S_i is the sum of the losses of its items
and A_i what the model adds. The Trainer divides by accumulation and averages over ranks, that is by M. So a model that returns
S_i / n_i is weighted by n_i M / N, and one that returns S_i / num_items_in_batch + A_i is given N / R and weighted by M / R.
"""

from collections import deque
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from transformers import Trainer
from transformers.trainer_utils import EvalLoopOutput

from training.data import InOrder, RankBatches
from training.evaluation import ItemMean, Means

_DIFFERENT = 1e-3  # of a loss: it stays the same where the count is ignored


class StepWeights:
    """What each micro batch of one optimizer step counts for on this rank.

    `counts` are the items of this rank's micro batches, of shape (accumulation,), 0 for an empty one; `totals` the items and
    the micro batches with items of all ranks, of shape (2,); `micro_batches` is M. `divides` says that the model divides by
    `num_items_in_batch`.
    """

    def __init__(self, counts: torch.Tensor, totals: torch.Tensor, micro_batches: int, *, divides: bool) -> None:
        items, filled = totals.clamp(min=1).unbind()
        self.num_items = items / filled if divides else None
        weights = (counts > 0) / filled if divides else counts / items
        self._weights = deque((weights * micro_batches).unbind())

    def peek(self) -> torch.Tensor:
        """The weight of the next micro batch, of shape ()."""
        return self._weights[0]

    def next(self) -> torch.Tensor:
        """The same, taken."""
        return self._weights.popleft()


class GlobalBatchTrainer(Trainer):  # type: ignore[misc]
    """A Trainer whose training and evaluation losses are means over items, whatever the split.

    `sequence_shares` processes share each sequence; `divides_by_items` says that the model divides its token loss by
    `num_items_in_batch`, which `divides_by_count` finds out.
    """

    sequence_shares = 1
    divides_by_items = False
    step_weights: StepWeights | None = None
    _batches: RankBatches | None = None
    _evaluated: ItemMean | None = None  # during an evaluation
    _held_out: RankBatches | None = None

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.takes_num_items = bool(vars(self)["model_accepts_loss_kwargs"])
        # The division is done here. The Trainer divides by accumulation, and gradients are averaged over ranks.
        self.model_accepts_loss_kwargs = False

    def items(self, inputs: dict[str, Any]) -> torch.Tensor:
        """How many items, tokens or rows, the loss of a micro batch is a mean over: shape ()."""
        raise NotImplementedError

    def get_batch_samples(self, *arguments: Any) -> tuple[list[Any], None]:
        """The micro batches of the next optimizer step on this rank; their weights are kept for `compute_loss`."""
        batches, _ = super().get_batch_samples(*arguments)
        counts = [self.items(batch) for batch in batches]
        self.step_weights = self.weigh(counts, divides=self.divides_by_items) if batches else None
        return batches, None

    def _get_num_items_in_batch(self, *_: Any) -> None:
        return None

    def weigh(self, items: list[torch.Tensor], *, divides: bool = False) -> StepWeights:
        """The weights of this rank's micro batches of a step by their numbers of `items`; a collective."""
        counts = torch.stack(items).to(self.args.device, torch.float32)
        if self._ends_empty(len(items)):
            counts[-1] = 0
        if self.sequence_shares > 1:
            from deepspeed.utils import groups

            dist.all_reduce(counts, group=groups._get_sequence_parallel_group())
        totals = torch.stack([counts.sum(), (counts > 0).sum().to(counts)])
        if self.args.world_size > 1:
            dist.all_reduce(totals)
            totals /= self.sequence_shares
        micro_batches = len(items) * self.args.world_size // self.sequence_shares
        return StepWeights(counts, totals, micro_batches, divides=divides)

    def _ends_empty(self, micro_steps: int) -> bool:
        """Whether the step that comes is an epoch's last and this rank's last micro batch in it has no rows."""
        if self._batches is None or not self._batches.ends_empty:
            return False
        accumulation = self.args.gradient_accumulation_steps
        before = (self.state.global_step % -(-len(self._batches) // accumulation)) * accumulation
        ends: bool = before + micro_steps == len(self._batches)
        return ends

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,  # noqa: ARG002 - the library's; the count is kept in step_weights
    ) -> Any:
        """The micro batch's share of the step's loss, times M; its own mean in an evaluation or where no step has begun."""
        step = self.step_weights if model.training else None
        if step and step.num_items is not None:
            inputs = {**inputs, "num_items_in_batch": step.num_items}
        result = super().compute_loss(model, inputs, return_outputs=return_outputs)
        if step is None:
            return result
        weight = step.next()
        return (result[0] * weight, result[1]) if return_outputs else result * weight

    def training_pass(self, model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        """One forward and backward pass that counts for nothing."""
        self.step_weights = None
        loss: torch.Tensor = super().training_step(model, inputs)
        return loss

    def get_train_dataloader(self) -> DataLoader[Any]:
        """This rank's batches of `_batches`; accelerate's loader would fill the end of an epoch with rows again."""
        if self._batches is None:
            loader: DataLoader[Any] = super().get_train_dataloader()
            return loader
        return self._loader(self.train_dataset, self._batches)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """The same of the held-out rows, in their order."""
        if self.sequence_shares > 1:
            loader: DataLoader[Any] = super().get_eval_dataloader(eval_dataset)
            return loader
        rows = self.eval_dataset if eval_dataset is None else eval_dataset
        self._held_out = RankBatches(
            InOrder(len(rows)), self.args.eval_batch_size, self.args.process_index, self.args.world_size
        )
        return self._loader(rows, self._held_out)

    def _loader(self, rows: Any, batches: RankBatches) -> DataLoader[Any]:
        return DataLoader(
            rows,
            batch_sampler=batches,
            collate_fn=self.data_collator,
            pin_memory=self.args.dataloader_pin_memory,
            generator=torch.Generator(),  # not the one of dropout, which evaluations would put out of step
        )

    def evaluation_loop(self, dataloader: DataLoader[Any], *arguments: Any, **named: Any) -> EvalLoopOutput:
        """The library's loop, with means over items in the place of its means over batches."""
        mean = self._evaluated = ItemMean(self.args.device, len(dataloader), self._held_out)
        try:
            output = super().evaluation_loop(dataloader, *arguments, **named)
        finally:
            self._evaluated = None
        if "eval_loss" in output.metrics:
            values = mean.values()
            values["loss"] += sum(values.pop(name) for name in [*values] if name.startswith("loss_"))
            output.metrics.update({f"eval_{name}": value for name, value in values.items()})
        return output

    def prediction_step(self, model: torch.nn.Module, inputs: dict[str, Any], *arguments: Any, **named: Any) -> Any:
        """The library's step; the batch's loss is also kept with the number of items behind it."""
        loss, *rest = super().prediction_step(model, inputs, *arguments, **named)
        assert self._evaluated is not None
        self._evaluated.add(self.measures(loss, inputs))
        return loss, *rest

    def measures(self, loss: torch.Tensor, inputs: dict[str, Any]) -> Means:
        """What an evaluation takes the mean of over all batches. "loss" may be parted where it is of several kinds of items:
        the parts are named loss and loss_..., and added up."""
        return {"loss": (loss, self.items(inputs))}

    @property
    def repeats_a_row(self) -> bool:
        """Whether the batch at hand is a repeated row that counts nothing."""
        if self._evaluated is not None:
            return self._evaluated.repeats
        return self.step_weights is not None and not self.step_weights.peek()


def divides_by_count(trainer: GlobalBatchTrainer, model: torch.nn.Module, inputs: dict[str, Any]) -> bool:
    """Whether the model divides its loss by `num_items_in_batch`: two forward passes on `inputs`, on every rank alike."""
    if not trainer.takes_num_items:
        return False
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            one, two = (
                float(model(**inputs, num_items_in_batch=torch.tensor(count, device=trainer.args.device))["loss"])
                for count in (1.0, 2.0)
            )
    finally:
        model.train(was_training)
    return abs(one - two) > _DIFFERENT * abs(one)
