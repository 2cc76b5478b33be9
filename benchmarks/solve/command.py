"""Compares the longest max_length that `lathe forecast --solve max_length` finds with trying.

`python -m benchmarks.solve [--count N] [--seed S] [--formula] [--json]`

Each configuration is drawn at random by the seed: family, method, gradient checkpointing, rows, and a memory limit at which a
length between 128 and 960 tokens is the longest. Real runs of two steps on CPU under that limit look for the longest length by
themselves, in steps of 64 tokens. `--formula` compares the formula alone, without simulated steps.

Exits with 1 if an answer is more than one step away.
"""

import argparse
import json
import random
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.matrix.command import Ranks
from benchmarks.matrix.inputs import byte_tokenizer
from training.config.choices import Wanted
from training.config.run_config import RunConfig
from training.forecast.solve import LENGTH_STEP
from training.model_info.families import read_shape
from worker.forecasts.forecast import Setup
from worker.forecasts.solving import solved

LONGEST = 1024
VOCABULARY = 2000
SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 128, "n_layer": 4, "n_head": 4, "n_positions": LONGEST},
    "llama": {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 4, "num_attention_heads": 4},
    "qwen3": {
        "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": True,
    },
    "gemma2": {
        "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32,
    },
}  # fmt: skip
METHODS: tuple[dict[str, Any], ...] = ({"method": "full"}, {"method": "lora", "target_modules": "all-linear"})
BASE = {
    "task": "sft", "train_on_prompt": True, "max_steps": 2, "eval_split": 0, "eval_steps": 0, "save_steps": 0, "logging_steps": 1,
    "precision": "fp32", "on_out_of_memory": "fail", "strategy": "single", "num_processes": 1, "learning_rate": 1e-4,
}  # fmt: skip


@dataclass
class Case:
    """A configuration: how `Ranks` runs it."""

    config: dict[str, Any]
    ranks: int = 1
    strategy: str = "single"
    lengths: dict[int, bool] = field(default_factory=dict)

    @property
    def name(self) -> str:
        names = ("model", "method", "gradient_checkpointing", "micro_batch_size", "memory_limit")
        values = [self.config[name] for name in names]
        return f"{Path(values[0]).name} {values[1]} checkpointing {values[2]}, {values[3]} rows, {values[4]} MiB"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.solve", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--count", type=int, default=10, metavar="N", help="configurations (default 10)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--formula", action="store_true", help="the formula alone, without simulated steps")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lathe-solve-") as home:
        rows = compare(cases(Path(home), options.count, options.seed), Path(home), simulate=not options.formula)
    worst = max((abs(row["answer"] - row["tried"]) for row in rows), default=0)
    agreed = sum(row["answer"] == row["tried"] for row in rows)
    if options.json:
        print(json.dumps({"rows": rows, "worst": worst}, indent=1))
    else:
        print("\n".join(f"{row['name']}: answer {row['answer']}, tried {row['tried']}" for row in rows))
        print(f"{agreed} of {len(rows)} equal, the worst is {worst} tokens away")
    sys.exit(worst > LENGTH_STEP)


def compare(drawn: list[Case], home: Path, *, simulate: bool) -> list[dict[str, Any]]:
    """Returns for each case the answer, and the longest length that really trains under its limit."""
    ranks, rows = Ranks(drawn[0], home / "ranks"), []
    try:
        for number, case in enumerate(drawn):
            found = answer(case, simulate=simulate)
            tried = longest(case, ranks, home / f"run-{number}", found)
            rows.append({"name": case.name, "answer": found, "tried": tried, "runs": case.lengths})
            print(f"{number + 1}/{len(drawn)} {case.name}: answer {found}, tried {tried}", file=sys.stderr, flush=True)
    finally:
        ranks.end()
    return rows


def answer(case: Case, *, simulate: bool) -> int:
    """Returns the longest length that Lathe finds."""
    config = RunConfig.model_validate(case.config)
    shape = read_shape(Path(config.model) / "config.json")
    (found,) = solved(Setup(config, replace(shape, longest=LONGEST), None), [Wanted.MAX_LENGTH], simulate=simulate)
    return int(found.value or 0)


def longest(case: Case, ranks: Ranks, home: Path, guess: int) -> int:
    """Returns the longest length that really trains, a multiple of 64: a search that begins at a guess."""
    low, high, width = 0, LONGEST + LENGTH_STEP, LENGTH_STEP
    value = min(max(guess, LENGTH_STEP), LONGEST)
    while high - low > LENGTH_STEP:
        if trains(case, ranks, home, value):
            low, value = value, min(value + width, high - LENGTH_STEP)
        else:
            high, value = value, max(value - width, low + LENGTH_STEP)
        width *= 2
        if low and high <= LONGEST:
            value = (low + high) // 2 // LENGTH_STEP * LENGTH_STEP
    return low


def trains(case: Case, ranks: Ranks, home: Path, length: int) -> bool:
    """True if a run of this length does not exceed its limit.

    Raises:
        RuntimeError: it fails for another reason.
    """
    config = case.config | {"max_length": length}
    outcome, reason = ranks.run(Case(config), home.with_name(f"{home.name}-{length}"))
    if outcome != "worked" and "memory" not in reason.lower():
        raise RuntimeError(f"{case.name} at {length}: {reason}")
    case.lengths[length] = outcome == "worked"
    return outcome == "worked"


def cases(home: Path, count: int, seed: int) -> list[Case]:
    """Returns configurations drawn at random."""
    from training.forecast.forecast import estimate

    make_inputs(home)
    drawn, dice = [], random.Random(seed)
    for _ in range(count):
        config = (
            BASE
            | dice.choice(METHODS)
            | {"model": str(home / dice.choice(list(SHAPES))), "data": str(home / "rows.jsonl")}
        )
        config |= {
            "micro_batch_size": dice.choice((1, 2, 4)), "gradient_checkpointing": dice.choice(("none", "full", "selective"))
        }  # fmt: skip
        tried = RunConfig.model_validate(config | {"max_length": dice.randint(128, 960)})
        peak = estimate(tried, read_shape(Path(tried.model) / "config.json")).allocated_bytes
        drawn.append(Case(config | {"memory_limit": round(peak / 2**20)}))
    return drawn


def make_inputs(home: Path) -> None:
    """Makes the models, and rows that are longer than any length."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    for name, shape in SHAPES.items():
        torch.manual_seed(0)
        ends = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1}
        AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **shape, **ends)).save_pretrained(home / name)
        byte_tokenizer().save_pretrained(home / name)
    row = {
        "prompt": "a",
        "completion": "a" * (LONGEST + 64),
    }  # longer than any maximum length, so every row is truncated
    (home / "rows.jsonl").write_text((json.dumps(row) + "\n") * 16, encoding="utf-8")
