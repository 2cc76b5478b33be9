"""Sequence parallelism (Ulysses) through accelerate and DeepSpeed: several processes share each sequence."""

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import DeepSpeedSequenceParallelConfig
from torch.nn.functional import pad
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from training.batches.views import IGNORED
from training.config.run_config import RunConfig
from training.errors import UserError

ATTENTION = "sdpa"
_ZERO_3 = 3


def parallelism(config: RunConfig) -> ParallelismConfig | None:
    """Returns accelerate's configuration of sequence parallelism; None without it."""
    size = config.sequence_parallel_size
    if size == 1:
        return None
    handler = DeepSpeedSequenceParallelConfig(sp_seq_length_is_variable=True, sp_attn_implementation=ATTENTION)
    return ParallelismConfig(
        sp_size=size, sp_backend="deepspeed", sp_handler=handler, dp_shard_size=config.num_processes // size
    )


def end(config: RunConfig) -> None:
    """Gives models their own attention again; afterwards each rank computes whole sequences alone."""
    if config.sequence_parallel_size > 1:
        del ALL_ATTENTION_FUNCTIONS[ATTENTION]  # DeepSpeed's entry in front of transformers' own


def prepare_attention(model: Any, config: RunConfig) -> None:
    """Checks before training that the processes can share the model's attention; DeepSpeed would fail during it.

    Also gives the model's configuration the size of a head, which DeepSpeed reads and some leave to the default.

    Raises:
        UserError: sequence_parallel_size does not fit the model.
    """
    size, facts = config.sequence_parallel_size, model.config.get_text_config()
    if size == 1:
        return
    heads, fix = facts.num_attention_heads, "Set it to 1."
    if heads % size:
        reason = f"does not divide the model's {heads} attention heads, which the processes share."
        fix = f"Set it to a divisor of both {heads} and num_processes."
    elif (used := model.config._attn_implementation) != ATTENTION:
        reason = f"needs PyTorch's SDPA, and this model computes its attention with {used}."
    elif not hasattr(facts, "num_key_value_heads"):  # older models also return other shapes than DeepSpeed's attention
        reason = f"is not supported by DeepSpeed for models of the type {facts.model_type}."
    else:
        if getattr(facts, "head_dim", 0) is None:
            facts.head_dim = facts.hidden_size // heads
        return
    raise UserError("sequence_parallel_size", size, reason, fix)


def own_part(collate: Any, micro_batch: int, size: int, process: int) -> Any:
    """Returns `collate` with batches cut down to one process's part of each sequence, which `size` processes share.

    They load the same rows and need no exchange. As the model sees only a part, the batch has its positions, and labels that are
    shifted already. The last batch of an epoch is filled to `micro_batch` rows, which DeepSpeed expects, with rows without loss.
    """

    def collate_own_part(rows: list[Any]) -> dict[str, torch.Tensor]:
        batch: dict[str, torch.Tensor] = collate([*rows, *[_without_loss(rows[0])] * (micro_batch - len(rows))])
        count, length = batch["input_ids"].shape  # a multiple of PAD_MULTIPLE, and so of `size`
        batch["shift_labels"] = pad(batch.pop("labels")[:, 1:], (0, 1), value=IGNORED)
        batch["position_ids"] = torch.arange(length).expand(count, length)
        own = slice(process % size * (length // size), (process % size + 1) * (length // size))
        return {name: part[:, own].contiguous() for name, part in batch.items()}

    return collate_own_part


def _without_loss(row: Any) -> Any:
    """Returns the first tokens of a row, without loss."""
    tokens = row["input_ids"][:2]
    return {"input_ids": tokens, "labels": np.full_like(tokens, IGNORED)}


def shared_mean(loss: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Returns the mean over the tokens of whole sequences, from each process's mean over its part with these `labels`.

    Its gradient is that of this process's part alone: no communication in the backward pass. A part without loss has the mean NaN.
    """
    from deepspeed.utils import groups

    group, own = groups._get_sequence_parallel_group(), (labels != IGNORED).sum()
    count = own.clone()
    dist.all_reduce(count, group=group)
    part = torch.where(own > 0, loss, torch.zeros_like(loss)) * own / count.clamp(min=1)
    total = part.detach().clone()
    dist.all_reduce(total, group=group)
    return part + (total - part).detach()


def gradient_factor(engine: Any, size: int) -> int:
    """Returns the factor of the gradient with which DeepSpeed sums it over the `size` processes that share a sequence.

    ZeRO 1 and 2 sum. ZeRO-3 averages if it reduces and scatters in one operation, which is set here.
    """
    if size > 1 and engine.zero_optimization_stage() == _ZERO_3:
        engine.optimizer.reduce_scatter = True
        return size
    return 1


def scale_gradient(loss: torch.Tensor, factor: int) -> torch.Tensor:
    """Returns `loss` with its gradient multiplied by `factor`; a wrong size of the gradient would change clipping and SGD."""
    return loss * factor + (loss - loss * factor).detach()
