"""Sequence parallelism (Ulysses) through accelerate and DeepSpeed: several processes share each sequence."""

from collections import deque
from copy import copy
from typing import Any

import torch
import transformers.trainer
from accelerate import skip_first_batches
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import DeepSpeedSequenceParallelConfig
from torch.nn.functional import pad
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from training.batches.views import IGNORED
from training.config.run_config import RunConfig
from training.errors import UserError
from training.tokens.order import padded

ATTENTION = "sdpa"


def parallelism(config: RunConfig) -> ParallelismConfig | None:
    """Returns accelerate's configuration of sequence parallelism; None without it."""
    size = config.sequence_parallel_size
    if size == 1:
        return None
    transformers.trainer.skip_first_batches = skip_batches
    handler = DeepSpeedSequenceParallelConfig(sp_seq_length_is_variable=True, sp_attn_implementation=ATTENTION)
    return ParallelismConfig(
        sp_size=size, sp_backend="deepspeed", sp_handler=handler, dp_shard_size=config.num_processes // size
    )


def skip_batches(loader: Any, count: int) -> Any:
    """Returns `loader` without its first `count` batches, to resume within an epoch.

    accelerate's function does not support DeepSpeed's loader (UlyssesSPDataLoaderAdapter), which turns each batch of its inner
    loader into one per process of the group.
    """
    inner_batches, rest = divmod(count, loader.sp_world_size)
    shortened = copy(loader)
    shortened.dl = skip_first_batches(loader.dl, inner_batches)
    shortened.iter, shortened.micro_batches = iter(shortened.dl), deque()
    for _ in range(rest):
        next(shortened)
    return shortened


def end(config: RunConfig) -> None:
    """Gives models their own attention again; afterwards each rank computes whole sequences alone."""
    if config.sequence_parallel_size > 1:
        del ALL_ATTENTION_FUNCTIONS[ATTENTION]  # DeepSpeed's entry in front of transformers' own


def check_attention_heads(model: torch.nn.Module, config: RunConfig) -> None:
    """Checks before training that the attention heads divide evenly; DeepSpeed would fail during it.

    Raises:
        UserError: sequence_parallel_size does not divide the number of attention heads.
    """
    size, heads = config.sequence_parallel_size, getattr(model.config, "num_attention_heads", 0)
    if size > 1 and heads % size:
        raise UserError(
            "sequence_parallel_size",
            size,
            f"does not divide the model's {heads} attention heads, which the processes share.",
            f"Set it to a divisor of both {heads} and num_processes.",
        )


def with_position_ids(collate: Any, config: RunConfig) -> Any:
    """Returns `collate` with position_ids added to its batches under sequence parallelism; each process sees only a part."""
    if config.sequence_parallel_size == 1:
        return collate

    def collate_with_positions(rows: list[Any]) -> dict[str, torch.Tensor]:
        batch: dict[str, torch.Tensor] = collate(rows)
        if not torch.cuda.is_available():  # gloo gathers only parts of equal length, and batches differ between ranks
            missing = padded(config.max_length) - batch["input_ids"].shape[1]
            fill = {"labels": IGNORED}
            batch = {name: pad(part, (0, missing), value=fill.get(name, 0)) for name, part in batch.items()}
        count, length = batch["input_ids"].shape
        return batch | {"position_ids": torch.arange(length).expand(count, length).contiguous()}

    return collate_with_positions


def scale_gradient(loss: torch.Tensor, size: int) -> torch.Tensor:
    """Returns `loss` with its gradient divided by the `size` processes that share a sequence.

    Each of them computes the same loss from the parts of all, and their gradients are summed. The gradient would be `size`
    times too large, which changes clipping and SGD.
    """
    return loss / size + (loss - loss / size).detach()
