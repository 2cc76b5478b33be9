"""Compares the speed of Lathe, transformers' Trainer and trl, with equal tokens per step and the same loss mask.

`python -m benchmarks.throughput [FILE] [--tokenizer FOLDER] [--size 384x6] [--method full] [--rows 8] [--steps 12] [--repeats 3]
[--contenders NAME ...] [--json]` trains a model of GPT-2's shape from the same initial weights: transformers' Trainer padded and
grouped by length, trl's SFTTrainer padded and packed (best fit), and Lathe's training program with default settings. They run in
turn, each in its own process, several times. It prints the medians of tokens per second and per CPU second (without padding and
the first step) and of peak memory, and the loss of held-out rows after the same number of tokens.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
DATA = ROOT / "../shared/data/alpaca_en_demo.json"
CONTENDERS = ("trainer_padded", "trainer_grouped", "trl_padded", "trl_packed", "lathe")
LABELS = {
    "trainer_padded": "Trainer, padded",
    "trainer_grouped": "Trainer, by length",
    "trl_padded": "trl, padded",
    "trl_packed": "trl, packed (bfd)",
    "lathe": "Lathe, default",
}
HELD_OUT, MAX_LENGTH, SEED = 50, 1024, 1
RATES = ("tokens_per_second", "tokens_per_cpu_second")
Figures = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("file", type=Path, nargs="?", default=DATA)
    parser.add_argument("--tokenizer", type=Path, default=DATA.parent / "gpt2-tokenizer")
    parser.add_argument("--size", default="384x6", help="width x layers; GPT-2 is 768x12")
    parser.add_argument("--method", choices=("full", "lora"), default="full")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="lathe-throughput-"))
    os.environ["LATHE_TOKENS"] = str(home / "tokens")
    try:
        settings = prepare(home, arguments)
        result: dict[str, list[Figures]] = {name: [] for name in arguments.contenders}
        for repeat in range(arguments.repeats):
            for name in arguments.contenders:
                folder = home / f"{name}-{repeat}"
                result[name].append(
                    train_lathe(folder, settings) if name == "lathe" else train_bare(name, folder, settings)
                )
                print(f"{repeat} {name}: {json.dumps(result[name][-1])}", file=sys.stderr, flush=True)
        print(report(result, settings, as_json=arguments.json))
    finally:
        shutil.rmtree(home, ignore_errors=True)


def prepare(home: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Makes the model, the rows as files for Lathe and as tokens for the others, and the shared settings."""
    from training.chat.tokenizer import load
    from training.tokens.make_store import find_or_make
    from training.tokens.order import Shuffled
    from training.tokens.selection import select

    width, layers = map(int, arguments.size.split("x"))
    command = [sys.executable, "-c", MAKE_MODEL, str(home / "model"), str(width), str(layers)]
    subprocess.run(command, check=True, capture_output=True)
    for file in arguments.tokenizer.iterdir():
        shutil.copy(file, home / "model")
    parts = split(arguments.file, home)
    tokenizer = load(str(home / "model"), None)
    settings: dict[str, Any] = {}
    for name, path in parts.items():
        store = find_or_make(path, home / "tokens", tokenizer, str(home / "model"), None, None, lambda *_: None)
        selected = select(store.lengths, store.first_trained, max_length=MAX_LENGTH, seed=SEED).train
        if name == "train":  # in Lathe's order, so that contenders that keep the order train on the same batches
            selected = selected[Shuffled(len(selected), SEED).epoch(0)]
        rows = []
        for row in selected:
            tokens, trained = store.row(int(row))
            tokens, labels = tokens[:MAX_LENGTH], np.where(trained, tokens, -100)[:MAX_LENGTH]
            rows.append({"input_ids": tokens.tolist(), "labels": labels.tolist()})
        (home / f"{name}.rows.json").write_text(json.dumps(rows))
        settings |= {name: str(path), f"{name}_rows": str(home / f"{name}.rows.json")}
        settings[f"{name}_lengths"] = [len(row["input_ids"]) for row in rows]
    per_step = arguments.rows * float(np.mean(settings["train_lengths"]))
    return settings | {
        "model": str(home / "model"),
        "pad": tokenizer.eos_token_id,
        "rows": arguments.rows,
        "size": arguments.size,
        "pack": max(round(per_step), *settings["train_lengths"]),
        "max_length": MAX_LENGTH,
        "steps": arguments.steps,
        "tokens": round(arguments.steps * per_step),
        "method": arguments.method,
        "learning_rate": 5e-4 if arguments.method == "full" else 2e-4,
        "seed": SEED,
    }


# In another process, so that this one does not load torch.
MAKE_MODEL = """
import sys, torch
from transformers import GPT2Config, GPT2LMHeadModel
torch.manual_seed(0)
width, layers = int(sys.argv[2]), int(sys.argv[3])
off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
GPT2LMHeadModel(GPT2Config(n_embd=width, n_layer=layers, n_head=max(1, width // 64), **off)).save_pretrained(sys.argv[1])
"""


def split(file: Path, home: Path) -> dict[str, Path]:
    """Returns the training rows of the file, and its last rows, which are held out."""
    from training.data.rows import read_numbered

    rows = [row for _, row, example in read_numbered(file) if example]
    parts = {"train": rows[:-HELD_OUT], "held_out": rows[-HELD_OUT:]}
    for name, some in parts.items():
        (home / f"{name}.jsonl").write_text("\n".join(json.dumps(row) for row in some))
    return {name: home / f"{name}.jsonl" for name in parts}


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": str(os.cpu_count() or 1), "TOKENIZERS_PARALLELISM": "true"}


def run(command: list[str], env: dict[str, str]) -> str:
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return done.stdout


def train_bare(name: str, folder: Path, settings: dict[str, Any]) -> Figures:
    folder.mkdir()
    file = folder / "settings.json"
    file.write_text(json.dumps(settings | {"output": str(folder / "out")}))
    printed = run([sys.executable, "-m", "benchmarks.bare_throughput", name, str(file)], environment())
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith(('{"step"', '{"peak_bytes"'))]
    steps = [(line["time"], line["cpu"], line["tokens"], line["loss"]) for line in lines[:-1]]
    return figures(steps) | {"peak_bytes": lines[-1]["peak_bytes"], "eval_loss": lines[-1]["eval_loss"]}


def train_lathe(folder: Path, settings: dict[str, Any]) -> Figures:
    """Runs the training program as the supervisor does."""
    from training.config.run_config import RunConfig
    from training.run_folder.events import Finished, Metrics, decode
    from worker.supervision.launcher import launch

    folder.mkdir()
    tokens = tokens_by_step(settings)
    same = {name: settings[name] for name in ("model", "method", "max_length", "learning_rate", "seed")}
    asked = same | {
        "data": settings["train"],
        "validation_data": settings["held_out"],
        "micro_batch_size": settings["rows"],
        "max_steps": len(tokens),
        "lr_scheduler": "constant",
        "warmup": 0,
        "eval_steps": 0,
        "save_steps": 0,
    }
    config = RunConfig.model_validate(asked)
    (folder / "config.json").write_text(config.model_dump_json())
    card = os.environ.get("LATHE_BENCHMARK_GPU")  # a GPU's number
    command = launch(config, folder, [f"here/cuda:{card}" if card else "here/cpu"], os.cpu_count() or 1)
    cpu = run_watched(command.argv, environment() | command.env, folder)
    events = [decode(line) for line in (folder / "events.jsonl").read_bytes().splitlines()]
    logged = [event for event in events if isinstance(event, Metrics) and "loss" in event.values]
    (summary,) = [event.summary for event in events if isinstance(event, Finished)]
    losses = [float(event.values["loss"] or 0) for event in logged]
    steps = list(zip((event.time for event in logged), cpu, tokens, losses, strict=False))
    return figures(steps) | {"peak_bytes": max(summary["memory"]["peak_bytes"]), "eval_loss": summary["eval_loss"]}


def tokens_by_step(settings: dict[str, Any]) -> list[int]:
    """Returns Lathe's tokens after each step, up to the number of the others, at most one epoch."""
    seen = np.cumsum(settings["train_lengths"])
    by_step = seen[settings["rows"] - 1 :: settings["rows"]]
    return list(map(int, by_step[: int(np.searchsorted(by_step, settings["tokens"])) + 1]))


def run_watched(command: list[str], env: dict[str, str], folder: Path) -> list[float]:
    """Runs a training program. Returns the CPU seconds of its process at the log of each step."""
    import psutil

    from training.run_folder.events import Metrics, RankStarted, decode

    seconds: list[float] = []
    rank, read = None, 0
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=env, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        while process.poll() is None:
            time.sleep(0.02)
            lines = (folder / "events.jsonl").read_bytes().splitlines() if (folder / "events.jsonl").exists() else []
            for event in map(decode, lines[read:]):
                if isinstance(event, RankStarted):
                    rank = psutil.Process(event.pid)
                elif isinstance(event, Metrics) and "loss" in event.values and rank:
                    times = rank.cpu_times()
                    seconds.append(times.user + times.system)
            read = len(lines)
    if process.returncode:
        raise SystemExit((folder / "log").read_text()[-3000:])
    return seconds


def figures(steps: list[tuple[float, float, int, float]]) -> Figures:
    """Computes figures from (time, CPU seconds, tokens so far, loss) per step; the first step only starts the clocks."""
    (began, idle, before, first), (ended, busy, tokens, loss) = steps[0], steps[-1]
    return {
        "tokens_per_second": (tokens - before) / (ended - began),
        # CPU time of all threads does not depend on other load on the machine.
        "tokens_per_cpu_second": (tokens - before) / (busy - idle),
        "tokens": tokens,
        "first_loss": first,
        "train_loss": loss,
    }


def report(figures_by_name: dict[str, list[Figures]], settings: dict[str, Any], *, as_json: bool) -> str:
    medians = {
        name: {figure: statistics.median(run[figure] for run in runs) for figure in runs[0]}
        for name, runs in figures_by_name.items()
    }
    ratios = {
        name: {
            figure: [
                mine[figure] / other[figure] for mine, other in zip(figures_by_name.get("lathe", []), runs, strict=True)
            ]
            for figure in RATES
        }
        for name, runs in figures_by_name.items()
        if name != "lathe" and "lathe" in figures_by_name
    }
    faster = {
        name: {rate: statistics.median(values) for rate, values in rates.items()} for name, rates in ratios.items()
    }
    if as_json:
        about = {name: settings[name] for name in ("method", "size", "rows", "steps", "pack")}
        whole = {
            "settings": about,
            "medians": medians,
            "lathe_is_faster_by": faster,
            "ratios": ratios,
            "runs": figures_by_name,
        }
        return json.dumps(whole, indent=2)
    heads = f"{'tokens/s':>10}{'tokens/CPU s':>14}{'peak memory':>14}{'tokens seen':>13}{'held-out loss':>15}"
    lines = [f"{'':20}{heads}   Lathe is faster by"]
    for name, values in medians.items():
        by = (
            f"{faster[name]['tokens_per_second']:.2f} (CPU {faster[name]['tokens_per_cpu_second']:.2f})"
            if name in faster
            else ""
        )
        lines.append(
            f"{LABELS[name]:20}{values['tokens_per_second']:10.0f}{values['tokens_per_cpu_second']:14.0f}"
            f"{values['peak_bytes'] / 2**30:10.2f} GiB{values['tokens']:13,.0f}{values['eval_loss']:15.4f}   {by}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
