"""Part throughput: Lathe, transformers' Trainer and trl on the same rows and first weights, and the share of the card's peak.

The contenders are those of benchmarks/throughput.py, one after another and again from the first; medians are compared.
"""

import json
import os
import statistics
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import throughput
from benchmarks.gpu_bench import Bench, installed
from benchmarks.gpu_memory import this_card
from benchmarks.matrix_inputs import byte_tokenizer

REPEATS = 3
LOSS_LIMIT_PERCENT = 3.0
TABLE = "Tokens per second"
FORMULA = (
    "Model FLOPs of a token: 6 N + 6 L h s, with N the elements of all matrices that a token is multiplied by (the head, but not "
    "the embeddings), L layers of width h, and s the mean length of the row that a token is in (Chowdhery et al., \"PaLM\", 2022, "
    "appendix B, whose 12 L h s is of attention that is not causal). MFU is model FLOPs a second over the card's peak of dense "
    "16-bit products (training/cards.py). Padding counts as nothing."
)  # fmt: skip

NO_MEASUREMENT = "A few steps of a small model, once: the losses are compared here, and the rates are no measurement."


def measure(bench: Bench) -> None:
    os.environ["LATHE_TOKENS"] = str(bench.home / "tokens")
    if bench.on_cuda:
        os.environ["LATHE_BENCHMARK_GPU"] = os.environ["CUDA_VISIBLE_DEVICES"]
    settings = throughput.prepare(bench.home, inputs(bench))
    names = ["lathe", "trainer_padded", "trl_packed", *(["trl_padded"] if not bench.small else [])]
    if not (installed("trl") and installed("datasets")):
        bench.skip("trl", "trl or datasets is not installed")
        names = names[:2]
    found = repeat(bench, names, settings)
    if not found:
        return
    bench.note(FORMULA)
    if bench.small:
        bench.note(NO_MEASUREMENT)
    medians = {name: medians_of(runs) for name, runs in found.items()}
    for name, values in medians.items():
        tell(bench, name, values, medians["lathe"], settings, len(found[name]))
    losses = [values["eval_loss"] for values in medians.values()]
    apart = 100 * (max(losses) / min(losses) - 1)
    bench.check("held-out losses after as many tokens are apart by percent", apart, LOSS_LIMIT_PERCENT)


def inputs(bench: Bench) -> Namespace:
    """Rows whose lengths are spread as those of instructions are, a tokenizer of bytes, and the size of the model and the run."""
    drawn = np.random.Generator(np.random.PCG64(3))
    longest = 256 if bench.small else 1000
    count = 150 if bench.small else 1500
    lengths = np.clip(drawn.lognormal(np.log(longest / 4), 0.7, count), 24, longest).astype(int)
    words = ("count", "north", "stone", "river", "green", "field", "seven", "light")
    rows = []
    for number, length in enumerate(lengths):
        text = " ".join(words[(number + place * place) % len(words)] for place in range(length // 6 + 1))
        rows.append({"prompt": text[: length // 3], "completion": text[length // 3 : length]})
    file, tokenizer = bench.home / "lengths.jsonl", bench.home / "tokenizer"
    file.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    byte_tokenizer().save_pretrained(tokenizer)
    size = {"size": "64x2", "rows": 4, "steps": 6} if bench.small else {"size": "1024x16", "rows": 16, "steps": 30}
    return Namespace(file=file, tokenizer=tokenizer, method="full", **size)


def repeat(bench: Bench, names: list[str], settings: dict[str, Any]) -> dict[str, list[dict[str, float]]]:
    """The figures of each contender, interleaved, in as many repeats as there is time for."""
    found: dict[str, list[dict[str, float]]] = {}
    longest = 20.0
    for number in range(1 if bench.small else REPEATS):
        for name in names:
            if not bench.has_time(longest + 5, f"{throughput.LABELS[name]}, repeat {number + 1}"):
                continue
            began = time.monotonic()
            try:
                figures = run(bench.home / f"{name}-{number}", name, settings)
            except SystemExit as error:  # what the contender printed last
                bench.require(f"{throughput.LABELS[name]} trains", False, str(error)[-600:])
                continue
            found.setdefault(name, []).append(figures)
            longest = max(longest, time.monotonic() - began) if number else time.monotonic() - began
    return found if "lathe" in found else {}


def run(folder: Path, name: str, settings: dict[str, Any]) -> dict[str, float]:
    """The figures of one contender's process."""
    if name == "lathe":
        return throughput.train_lathe(folder, settings)
    return throughput.train_bare(name, folder, settings)


def medians_of(runs: list[dict[str, float]]) -> dict[str, float]:
    return {figure: statistics.median(one[figure] for one in runs) for figure in runs[0]}


def tell(
    bench: Bench, name: str, values: dict[str, float], lathe: dict[str, float], settings: dict[str, Any], runs: int
) -> None:
    """A row of a contender's medians."""
    card = this_card(bench)
    rate = values["tokens_per_second"]
    bench.row(
        TABLE, contender=throughput.LABELS[name], runs=runs, tokens_per_second=rate,
        lathe_is_faster_by=lathe["tokens_per_second"] / rate,
        mfu_percent=100 * rate * flops_of_a_token(settings) / card.flops if card else None,
        peak_bytes=values["peak_bytes"], tokens=values["tokens"], held_out_loss=values["eval_loss"],
    )  # fmt: skip


def flops_of_a_token(settings: dict[str, Any]) -> float:
    """Model FLOPs of training every weight on a token (FORMULA), for a model of GPT-2's shape."""
    from transformers import AutoConfig

    width, layers = map(int, settings["size"].split("x"))
    matrices = 12 * layers * width**2 + width * AutoConfig.from_pretrained(settings["model"]).vocab_size
    lengths = np.array(settings["train_lengths"], dtype=float)
    return float(6 * matrices + 6 * layers * width * (lengths**2).sum() / lengths.sum())
