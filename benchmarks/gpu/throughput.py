"""Part throughput: Lathe, transformers' Trainer and trl on the same rows and weights, and the share of the GPU's peak FLOPS.

It runs the contenders of benchmarks/throughput.py in turn, several times, and compares medians.
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
from benchmarks.gpu.bench import Bench, installed
from benchmarks.gpu.memory import this_card
from benchmarks.matrix.inputs import byte_tokenizer

REPEATS = 3
LEARNING_RATE = 1e-4  # without warmup; at 5e-4 the losses of equal trainers drift apart in bf16
FIRST_LIMIT_PERCENT, LOSS_LIMIT_PERCENT = 0.5, 3.0
SAME_BATCHES = ("lathe", "trainer_padded", "trl_padded")
TABLE = "Tokens per second"
FORMULA = (
    "Model FLOPs per token: 6 N + 6 L h s, where N is the number of parameters in matrix products (the head, but not the "
    "embeddings), L the number of layers, h their width, and s the mean length of a token's row (Chowdhery et al., \"PaLM\", 2022, "
    "appendix B; its 12 L h s is for attention that is not causal). MFU is model FLOPs per second divided by the GPU's peak for "
    "dense 16-bit matrix products (training/forecast/gpus.py). Pad tokens do not count."
)  # fmt: skip

NO_MEASUREMENT = "A few steps of a small model, once: this compares the losses; the rates are not a measurement."


def measure(bench: Bench) -> None:
    os.environ["LATHE_TOKENS"] = str(bench.home / "tokens")
    if bench.on_cuda:
        os.environ["LATHE_BENCHMARK_GPU"] = os.environ["CUDA_VISIBLE_DEVICES"]
    settings = throughput.prepare(bench.home, inputs(bench)) | {"learning_rate": LEARNING_RATE}
    names = ["lathe", "trainer_padded", "trl_packed", *(["trl_padded"] if not bench.small else [])]
    if not (installed("trl") and installed("datasets")):
        bench.skip("trl", "trl or datasets is not installed")
        names = names[:2]
    result = repeat(bench, names, settings)
    if not result:
        return
    bench.note(FORMULA)
    if bench.small:
        bench.note(NO_MEASUREMENT)
    medians = {name: medians_of(runs) for name, runs in result.items()}
    for name, values in medians.items():
        tell(bench, name, values, medians["lathe"], settings, len(result[name]))
    first = [values["first_loss"] for name, values in medians.items() if name in SAME_BATCHES]
    bench.check("difference of the first step's losses, in percent", percent_apart(first), FIRST_LIMIT_PERCENT)
    last = percent_apart([values["eval_loss"] for values in medians.values()])
    bench.check("difference of held-out losses after the same number of tokens, in percent", last, LOSS_LIMIT_PERCENT)


def percent_apart(losses: list[float]) -> float:
    return 100 * (max(losses) / min(losses) - 1)


def inputs(bench: Bench) -> Namespace:
    """Makes rows with lengths like those of instruction data, a byte tokenizer, and the sizes of model and run."""
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
    """Returns the figures of each contender, interleaved, with as many repeats as time allows."""
    result: dict[str, list[dict[str, float]]] = {}
    longest = 20.0
    for number in range(1 if bench.small else REPEATS):
        for name in names:
            if not bench.has_time(longest + 5, f"{throughput.LABELS[name]}, repeat {number + 1}"):
                continue
            began = time.monotonic()
            try:
                figures = run(bench.home / f"{name}-{number}", name, settings)
            except SystemExit as error:  # its text is the contender's last output
                bench.require(f"{throughput.LABELS[name]} trains", False, str(error)[-600:])
                continue
            result.setdefault(name, []).append(figures)
            longest = max(longest, time.monotonic() - began) if number else time.monotonic() - began
    return result if "lathe" in result else {}


def run(folder: Path, name: str, settings: dict[str, Any]) -> dict[str, float]:
    """Runs one contender and returns its figures."""
    if name == "lathe":
        return throughput.train_lathe(folder, settings)
    return throughput.train_bare(name, folder, settings)


def medians_of(runs: list[dict[str, float]]) -> dict[str, float]:
    return {figure: statistics.median(item[figure] for item in runs) for figure in runs[0]}


def tell(
    bench: Bench, name: str, values: dict[str, float], lathe: dict[str, float], settings: dict[str, Any], runs: int
) -> None:
    """Adds a row with a contender's medians."""
    card = this_card(bench)
    rate = values["tokens_per_second"]
    bench.row(
        TABLE, contender=throughput.LABELS[name], runs=runs, tokens_per_second=rate,
        lathe_is_faster_by=lathe["tokens_per_second"] / rate,
        mfu_percent=100 * rate * flops_of_a_token(settings) / card.flops if card else None,
        peak_bytes=values["peak_bytes"], tokens=values["tokens"], held_out_loss=values["eval_loss"],
    )  # fmt: skip


def flops_of_a_token(settings: dict[str, Any]) -> float:
    """Returns the model FLOPs per token of full training (FORMULA), for a model of GPT-2's shape."""
    from transformers import AutoConfig

    width, layers = map(int, settings["size"].split("x"))
    matrices = 12 * layers * width**2 + width * AutoConfig.from_pretrained(settings["model"]).vocab_size
    lengths = np.array(settings["train_lengths"], dtype=float)
    return float(6 * matrices + 6 * layers * width * (lengths**2).sum() / lengths.sum())
