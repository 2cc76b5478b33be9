"""Ulysses: processes that share each sequence, through accelerate and DeepSpeed."""

from collections import deque
from copy import copy
from typing import Any

import torch
import transformers.trainer
from accelerate import skip_first_batches
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import DeepSpeedSequenceParallelConfig
from torch.nn.functional import pad

from training.config import RunConfig
from training.data import IGNORED
from training.failure import UserError
from training.order import padded

ATTENTION = "sdpa"


def parallelism(config: RunConfig) -> ParallelismConfig | None:
    """What accelerate is told; None where no sequence is shared."""
    size = config.sequence_parallel_size
    if size == 1:
        return None
    transformers.trainer.skip_first_batches = skip_batches
    handler = DeepSpeedSequenceParallelConfig(sp_seq_length_is_variable=True, sp_attn_implementation=ATTENTION)
    return ParallelismConfig(
        sp_size=size, sp_backend="deepspeed", sp_handler=handler, dp_shard_size=config.num_processes // size
    )


def skip_batches(loader: Any, count: int) -> Any:
    """`loader` without its first `count` batches, for a run that goes on within an epoch.

    transformers leaves this to accelerate, which knows no loader of DeepSpeed's (UlyssesSPDataLoaderAdapter): each batch of
    the loader inside comes as one for every process that shares it.
    """
    whole, rest = divmod(count, loader.sp_world_size)
    shortened = copy(loader)
    shortened.dl = skip_first_batches(loader.dl, whole)
    shortened.iter, shortened.micro_batches = iter(shortened.dl), deque()
    for _ in range(rest):
        next(shortened)
    return shortened


def refuse_unfit(model: torch.nn.Module, config: RunConfig) -> None:
    """Before training, where DeepSpeed would stop in its midst.

    Raises:
        UserError: the processes that share a sequence cannot share the model's attention heads.
    """
    size, heads = config.sequence_parallel_size, getattr(model.config, "num_attention_heads", 0)
    if size > 1 and heads % size:
        raise UserError(
            "sequence_parallel_size",
            size,
            f"does not divide the model's {heads} attention heads, of which each process takes its part.",
            "Set it to a divisor of both the heads and num_processes.",
        )


def shared(collate: Any, config: RunConfig) -> Any:
    """`collate`, with the place of every token in the batch where sequences are shared: a part of one does not show it."""
    if config.sequence_parallel_size == 1:
        return collate

    def with_places(rows: list[Any]) -> dict[str, torch.Tensor]:
        batch: dict[str, torch.Tensor] = collate(rows)
        if not torch.cuda.is_available():  # gloo gathers parts of one length alone, and ranks have batches of several
            missing = padded(config.max_length) - batch["input_ids"].shape[1]
            fill = {"labels": IGNORED}
            batch = {name: pad(part, (0, missing), value=fill.get(name, 0)) for name, part in batch.items()}
        count, length = batch["input_ids"].shape
        return batch | {"position_ids": torch.arange(length).expand(count, length).contiguous()}

    return with_places


def true_gradient(loss: torch.Tensor, size: int) -> torch.Tensor:
    """`loss` with its gradient divided by the `size` processes that share a sequence.

    Each of them computes the same loss from the parts of all, and their gradients are summed: as it stands the gradient is
    `size` times too large, which clipping and SGD take at its word.
    """
    return loss / size + (loss - loss / size).detach()
