"""Compares the loss in chunks of tokens with the model's own at a vocabulary of 150,000: peak memory, tokens per second, loss.

`python -m benchmarks.chunked_loss [--vocabulary N] [--tokens N] [--rounds N] [--json]`

Both train the same small model on the same rows, in this process and in turn: each round measures one step of either. Memory is
the peak of live storages on a CPU (training/reports/live_memory.py, which counts no memory within one operation) and what CUDA's
allocator counts on a GPU; `memory_share` is the peak above the weights, chunked divided by plain.
Exits with 1 if the losses or gradients differ by more than rounding.
"""

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from training.reports.live_memory import LiveStorages
from training.trainer.chunked_loss import ChunkedHead

MIB = 2**20
RELATIVE = 1e-5
WAYS = ("plain", "chunked")
Batch = dict[str, torch.Tensor]


@dataclass
class Measured:
    """What the steps of one way took: the loss, the norm of the gradient, and for each round bytes and seconds."""

    losses: list[float] = field(default_factory=list)
    gradients: list[float] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chunked_loss", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--vocabulary", type=int, default=150_000)
    parser.add_argument("--tokens", type=int, default=1024, help="of a micro batch, half of them with loss")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    logging.set_verbosity_error()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = make_model(options.vocabulary).to(device)
    batch = make_batch(options.tokens, options.vocabulary, device)
    measured = {way: Measured() for way in WAYS}
    chunked = ChunkedHead(model)
    chunked.place()
    for one in range(options.rounds + 1):
        for way in WAYS if one % 2 else WAYS[::-1]:
            step(model, chunked if way == "chunked" else None, batch, measured[way])
    figures = summary(measured, options.tokens, model, chunked)
    print(json.dumps(figures, indent=1) if options.json else table(figures))
    sys.exit(not figures["equal"])


def make_model(vocabulary: int) -> LlamaForCausalLM:
    """A Llama of two small layers, so that the head takes most of the time and memory, as in a large model's last layer."""
    torch.manual_seed(0)
    size = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, use_cache=False, **size)).train()


def make_batch(tokens: int, vocabulary: int, device: torch.device) -> Batch:
    """Rows of 256 tokens, the second half of each with loss."""
    ids = torch.randint(
        vocabulary, (max(1, tokens // 256), min(tokens, 256)), generator=torch.Generator().manual_seed(0)
    )
    labels = torch.where(torch.arange(ids.shape[1]) < ids.shape[1] // 2, -100, ids)
    return {name: value.to(device) for name, value in (("input_ids", ids), ("labels", labels))}


def step(model: Any, chunked: ChunkedHead | None, batch: Batch, into: Measured) -> None:
    """Runs a forward and a backward pass twice: once for the time, once for the memory."""
    synchronize()
    start = time.perf_counter()
    loss = passes(model, chunked, batch)
    synchronize()
    into.seconds.append(time.perf_counter() - start)
    into.losses.append(float(loss))
    into.gradients.append(float(torch.nn.utils.get_total_norm([weight.grad for weight in model.parameters()])))
    model.zero_grad()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        passes(model, chunked, batch)
        into.peaks.append(torch.cuda.max_memory_allocated())
    else:
        with LiveStorages() as live:
            live.hold(model, "weights")
            passes(model, chunked, batch)
            into.peaks.append(live.peak)
    model.zero_grad()


def passes(model: Any, chunked: ChunkedHead | None, batch: Batch) -> torch.Tensor:
    """A forward and a backward pass. Returns the loss, the mean over the tokens with loss, of shape ()."""
    count = (batch["labels"][:, 1:] != -100).sum()
    loss: torch.Tensor = chunked.outputs(model, batch)["logits"] / count if chunked else model(**batch)["loss"]
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def summary(measured: dict[str, Measured], tokens: int, model: Any, chunked: ChunkedHead) -> dict[str, Any]:
    """Returns the medians of all rounds but the first, and the ratios of chunked to plain."""
    weights = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    figures: dict[str, Any] = {"vocabulary": chunked.vocabulary, "tokens": tokens, "chunk": chunked.chunk}
    for way, one in measured.items():
        figures[way] = {
            "loss": one.losses[-1],
            "gradient_norm": one.gradients[-1],
            "peak_bytes": int(statistics.median(one.peaks[1:])),
            "above_weights_bytes": int(statistics.median(one.peaks[1:])) - weights,
            "tokens_per_second": tokens / statistics.median(one.seconds[1:]),
        }
    plain, other = figures["plain"], figures["chunked"]
    figures["differences"] = {name: abs(other[name] / plain[name] - 1) for name in ("loss", "gradient_norm")}
    figures["equal"] = max(figures["differences"].values()) <= RELATIVE
    pairs = zip(measured["plain"].seconds[1:], measured["chunked"].seconds[1:], strict=True)
    figures["memory_share"] = other["above_weights_bytes"] / plain["above_weights_bytes"]
    figures["speed_ratio"] = statistics.median(before / after for before, after in pairs)
    return figures


def table(figures: dict[str, Any]) -> str:
    """Returns a line per way, and the ratios."""
    lines = [
        f"Vocabulary {figures['vocabulary']:,}, {figures['tokens']:,} tokens, chunks of {figures['chunk']} tokens",
        f"{'':10}{'peak':>14}{'above weights':>18}{'tokens/s':>12}{'loss':>14}{'gradient norm':>16}",
    ]
    for way in WAYS:
        one = figures[way]
        lines.append(
            f"{way:10}{one['peak_bytes'] / MIB:10,.0f} MiB{one['above_weights_bytes'] / MIB:14,.0f} MiB"
            f"{one['tokens_per_second']:12,.0f}{one['loss']:14.6f}{one['gradient_norm']:16.6f}"
        )
    share, speed = figures["memory_share"], figures["speed_ratio"]
    lines.append(f"chunked / plain: {share:.2f} of the memory above the weights, {speed:.2f} times as fast")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
