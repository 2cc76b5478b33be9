"""When a run computes its loss in chunks of tokens, and the size of a chunk. No torch."""

from training.config.choices import ChunkedLoss, Method, Task
from training.config.peft_methods import methods
from training.config.run_config import RunConfig

LEAST_VOCABULARY = 32_000
"""`auto` leaves smaller vocabularies to the model's own loss, whose logits take little memory."""
CHUNK_ELEMENTS = 2**25
"""Logits of a chunk: 128 MiB in fp32. A chunk of some hundred tokens keeps the matrix products efficient."""
TASKS = (Task.SFT, Task.PRETRAINING, Task.SEQ2SEQ)
_MULTIPLE, _LEAST = 64, 64


def chunk_tokens(vocabulary: int) -> int:
    """The number of tokens whose logits are in memory at once."""
    return max(_LEAST, CHUNK_ELEMENTS // vocabulary // _MULTIPLE * _MULTIPLE)


def cannot_chunk(config: RunConfig) -> tuple[str, str]:
    """The setting that excludes a chunked loss, and the reason; both are empty if none does."""
    if config.torch_compile:
        return "torch_compile", "the compiled model computes its own loss"
    if config.sequence_parallel_size > 1:
        return "sequence_parallel_size", "DeepSpeed computes the loss of each part of a row itself"
    if config.method is Method.ADALORA:
        return "method", "adalora adds the distance of its matrices from orthogonal ones to the model's own loss"
    method = methods().get(config.method.value)
    if method and method.prompts:
        return "method", f"{config.method.value} puts virtual tokens before each row"
    return "", ""


def wants_chunks(config: RunConfig, vocabulary: int) -> bool:
    """True if the run computes its loss in chunks, provided that its model's head is a plain linear module."""
    if config.task not in TASKS or config.chunked_loss is ChunkedLoss.OFF or cannot_chunk(config)[0]:
        return False
    return config.chunked_loss is ChunkedLoss.ON or vocabulary >= LEAST_VOCABULARY
