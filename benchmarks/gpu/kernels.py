"""Part kernels: each attention kernel, on equal, padded and flat rows, against the same model in fp32 on CPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available

from benchmarks.gpu.bench import Bench
from training.batches.collators import Collator
from training.batches.layout import FlatCollator, takes_row_bounds
from training.batches.views import Tokens
from training.models.attention import attend_row_by_row

LIMITS = {"float32": (1e-4, 1e-3), "bfloat16": (3e-2, 6e-2)}
"""Relative norms of the difference of the logits, and of the gradients of all weights."""
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
# The memory-efficient kernel has no grouped-query attention; transformers repeats keys and values only beside a mask.
REQUIRED_ON_CUDA = {
    ("sdpa flash", "equal", "bfloat16"),
    ("sdpa memory-efficient", "padded", "float32"),
    ("sdpa math", "equal", "float32"),
}
LENGTHS = {"small": (48, 7, 21, 40), "large": (900, 61, 333, 700)}


@dataclass(frozen=True)
class Case:
    """A kernel on a batch layout: `equal` lengths, or several lengths `padded` or `flat`."""

    kernel: str
    layout: str
    dtype: torch.dtype

    @property
    def format(self) -> str:
        return str(self.dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Result:
    """The logits of all tokens and the gradients of all weights, both flattened, in fp32 on CPU."""

    logits: torch.Tensor
    gradients: torch.Tensor


def measure(bench: Bench) -> None:
    lengths = LENGTHS["small" if bench.small else "large"]
    rows = {"mixed": random_rows(lengths), "equal": random_rows((max(lengths),) * 3)}
    references = {}
    for dtype in (torch.float32, torch.bfloat16):
        for kind, some in rows.items():
            model = make_model(bench, dtype).float()  # the weights stay rounded to 16 bits
            references[dtype, kind] = run(model, "padded", some, "cpu")
    for case in cases(bench):
        kind = "equal" if case.layout == "equal" else "mixed"
        try_case(bench, case, rows[kind], references[case.dtype, kind])


def cases(bench: Bench) -> Iterator[Case]:
    """Returns the cases to test; records the skipped ones with the reason."""
    kernels = [*(f"sdpa {name}" for name in BACKENDS), "sdpa row by row", "eager"]
    flash = {"flash_attention_2": is_flash_attn_2_available(), "flash_attention_3": is_flash_attn_3_available()}
    for name, there in flash.items():
        if not there:
            bench.skip(name, "CUDA or its package is not available")
    for dtype in (torch.float32, torch.bfloat16):
        sixteen = [name for name, there in flash.items() if there and dtype is torch.bfloat16]
        for kernel in [*kernels, *sixteen]:
            yield from (Case(kernel, layout, dtype) for layout in ("equal", "padded", "flat"))


def random_rows(lengths: tuple[int, ...]) -> list[Tokens]:
    """Returns rows of random tokens; the first third of each carries no loss."""
    drawn = np.random.Generator(np.random.PCG64(1))
    rows = []
    for length in lengths:
        tokens = drawn.integers(1, 500, length, dtype=np.int32)
        rows.append({"input_ids": tokens, "labels": np.where(np.arange(length) < length // 3, np.int32(-100), tokens)})
    return rows


def make_model(bench: Bench, dtype: torch.dtype) -> LlamaForCausalLM:
    """Makes a model with the same random weights in each call, rounded to `dtype`, and grouped-query attention."""
    torch.manual_seed(0)
    hidden, layers = (64, 2) if bench.small else (512, 4)
    heads = hidden // 64 * 2
    config = LlamaConfig(
        vocab_size=512, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads // 2, initializer_range=0.05, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(dtype)


def try_case(bench: Bench, case: Case, rows: list[Tokens], expected: Result) -> None:
    """Adds a row and the checks of one case, or records that PyTorch has no such kernel."""
    try:
        with kernel(case) as implementation:
            model = make_model(bench, case.dtype)
            if implementation == "row by row":
                attend_row_by_row(model)
            else:
                model.set_attn_implementation(implementation)
            got = run(model.to(bench.device), case.layout, rows, bench.device)
    except (RuntimeError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0][:120]
        missing = any(words in reason for words in ("No viable backend", "No available kernel", "cuDNN"))
        outcome = "not available" if missing else reason
        bench.row("Kernels", kernel=case.kernel, rows=case.layout, format=case.format, outcome=outcome)
        needed = bench.on_cuda and (case.kernel, case.layout, case.format) in REQUIRED_ON_CUDA
        if needed or not missing:
            bench.require(f"{case.kernel} runs in {case.format}", False, reason)
        return
    logits, gradients = distance(got.logits, expected.logits), distance(got.gradients, expected.gradients)
    bench.row(
        "Kernels", kernel=case.kernel, rows=case.layout, format=case.format, outcome="ran", logits_differ_by=logits,
        gradients_differ_by=gradients,
    )  # fmt: skip
    for what, value, limit in zip(("logits", "gradients"), (logits, gradients), LIMITS[case.format], strict=True):
        bench.check(f"{case.kernel}, {case.layout} rows, {case.format}: {what}", value, limit)


@contextmanager
def kernel(case: Case) -> Iterator[str]:
    """A context that yields transformers' name of the kernel and restricts PyTorch to the backend of the case, if it names one."""
    backend = BACKENDS.get(case.kernel.removeprefix("sdpa "))
    if case.kernel == "sdpa row by row":
        yield "row by row"
    elif backend:
        with sdpa_kernel(backend):
            yield "sdpa"
    else:
        yield case.kernel


def run(model: LlamaForCausalLM, layout: str, rows: list[Tokens], device: str) -> Result:
    """Runs a forward and a backward pass of the mean loss over all tokens."""
    collate: Any = FlatCollator(labeled_only=False, bounds=takes_row_bounds(model)) if layout == "flat" else Collator(0)
    batch = {
        name: value.to(device) if isinstance(value, torch.Tensor) else value
        for name, value in collate([dict(row) for row in rows]).items()
    }
    if layout == "equal":
        del batch["attention_mask"]
    output = model(**batch)
    output.loss.backward()
    logits = output.logits.detach().float().cpu()
    kept_logits = (
        [logits[0]]
        if layout == "flat"
        else [parameter[: len(row["input_ids"])] for parameter, row in zip(logits, rows, strict=True)]
    )
    gradients = [
        parameter.grad.float().cpu().flatten() for parameter in model.parameters() if parameter.grad is not None
    ]
    return Result(torch.cat(kept_logits).flatten(), torch.cat(gradients))


def distance(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Returns the norm of the difference, relative to the norm of the expected value."""
    return float((got - expected).norm() / expected.norm())
