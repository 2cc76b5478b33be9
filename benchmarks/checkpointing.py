"""Measures for how long a checkpoint stops training, with `async_save` off and on.

`python -m benchmarks.checkpointing [--repeats 2] [--gigabytes 1] [--steps 12] [--folder DISK] [--json]` fine-tunes all weights
of a random model of that size (fp32, AdamW: a checkpoint is three times as large) on CPU, in turn with either setting, and saves
twice per run. It prints the medians over all checkpoints: seconds for which training stood still, seconds until the
checkpoint was complete, and seconds per step while none was written and while one was.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from training.config.run_config import RunConfig
from training.run_folder.events import CheckpointSaved, Event, Metrics, decode
from worker.supervision.launcher import launch

ROOT = Path(__file__).parents[1]
NAMES = {False: "while training waits", True: "in the background"}
_BYTES_PER_LAYER = 4 * 16 * 1024**2  # of the model below, in fp32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=12, help="before, between and after the two checkpoints of a run")
    parser.add_argument("--folder", type=Path, help="on the disk to measure")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="lathe-checkpointing-", dir=arguments.folder))
    try:
        figures = measure(home, arguments.repeats, arguments.gigabytes, arguments.steps)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    print(json.dumps(figures) if arguments.json else report(figures))


def measure(home: Path, repeats: int, gigabytes: float, steps: int) -> dict[str, Any]:
    """Returns the figures of both settings by name, the ratio of their stalls, and the size of a checkpoint."""
    model, data = make_model(home / "model", gigabytes), home / "data.jsonl"
    data.write_text("".join(json.dumps({"text": f"row {n} " * 16}) + "\n" for n in range(4 * steps)), encoding="utf-8")
    found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for number in range(repeats):
        for background in (False, True) if number % 2 else (True, False):  # in turn, since disks slow down as they fill
            rows = one_run(home / "run", model, data, steps, background=background)
            print(f"{NAMES[background]}: {json.dumps(rows)}", file=sys.stderr)
            found[background] += rows
    figures: dict[str, Any] = {
        NAMES[setting]: {name: statistics.median(row[name] for row in rows) for name in rows[0]}
        for setting, rows in found.items()
    }
    before, after = (figures[NAMES[setting]]["stall"] for setting in (False, True))
    return figures | {"ratio": before / after}


def one_run(run_dir: Path, model: Path, data: Path, steps: int, *, background: bool) -> list[dict[str, float]]:
    """Trains once; returns the figures of each of its checkpoints."""
    shutil.rmtree(run_dir, ignore_errors=True)
    run_dir.mkdir()
    config = RunConfig.model_validate(
        {
            "model": str(model), "data": str(data), "task": "pretraining", "method": "full", "async_save": background,
            "max_steps": 3 * steps, "save_steps": steps, "save_total_limit": 1, "micro_batch_size": 1, "max_length": 64,
            "eval_split": 0, "verify_rows": 0, "logging_steps": 1,
        }
    )  # fmt: skip
    (run_dir / "config.json").write_text(config.model_dump_json(), encoding="utf-8")
    command = launch(config, run_dir, ["here/cpu"])
    with (run_dir / "output.log").open("wb") as log:
        code = subprocess.run(
            command.argv, env=os.environ | command.env, cwd=ROOT, stdout=log, stderr=log, check=False
        ).returncode
    if code:
        raise SystemExit((run_dir / "output.log").read_text(encoding="utf-8", errors="replace")[-3000:])
    events = [event for line in (run_dir / "events.jsonl").read_bytes().splitlines() if (event := decode(line))]
    saved = [event for event in events if isinstance(event, CheckpointSaved) and event.step < (config.max_steps or 0)]
    return [figures_of(checkpoint, events) for checkpoint in saved]


def figures_of(saved: CheckpointSaved, events: list[Event]) -> dict[str, float]:
    stall = saved.stall_seconds or 0.0
    ends = {event.step: event.time for event in events if isinstance(event, Metrics) and "loss" in event.values}
    quiet = [ends[step] - ends[step - 1] for step in ends if 1 < step <= saved.step and step - 1 in ends]
    # The step after the checkpoint begins after the stall.
    while_writing = [
        ends[step] - ends[step - 1] - (stall if step == saved.step + 1 else 0)
        for step in ends
        if step > saved.step and ends[step] < saved.time
    ]
    return {
        "stall": stall,
        "complete": stall + saved.write_seconds,
        "gigabytes": saved.bytes / 1e9,
        "step": statistics.median(quiet),
        "step while writing": statistics.median(while_writing or quiet),
    }


def make_model(folder: Path, gigabytes: float) -> Path:
    """A random Llama of that size in fp32, with a small tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE(vocab={token: index for index, token in enumerate(["<|end|>", *alphabet])}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    layers = max(1, round(gigabytes * 1e9 / _BYTES_PER_LAYER))
    config = LlamaConfig(
        vocab_size=len(alphabet) + 1, hidden_size=1024, intermediate_size=4096, num_hidden_layers=layers,
        num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=64, bos_token_id=None, eos_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<|end|>", eos_token="<|end|>").save_pretrained(
        folder
    )
    return folder


def report(figures: dict[str, Any]) -> str:
    lines = [
        f"{name:22} training stands still {row['stall']:7.2f} s, complete after {row['complete']:7.1f} s "
        f"({row['gigabytes']:.1f} GB); a step takes {row['step']:.2f} s, while writing {row['step while writing']:.2f} s"
        for name, row in figures.items()
        if isinstance(row, dict)
    ]
    return "\n".join([*lines, f"Training stands still {figures['ratio']:.1f} times less."])


if __name__ == "__main__":
    main()
