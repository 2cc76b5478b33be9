"""Compares the time of a step of task grpo with that of a script on trl's GRPOTrainer, by phase, and measures what scoring costs.

`python -m benchmarks.policy_step [--size 256x8] [--method lora] [--prompts 4] [--samples 8] [--tokens 32] [--accumulation 1]
[--steps 8] [--repeats 3] [--threads 1] [--json]` trains a model of Llama's shape with random weights and the starter model's
tokenizer on the same prompts, with as many samples of as many tokens: hardly a sample ends early. The two run in turn, each in its
own process with the same threads, several times. It prints the medians of seconds per step, generation, scoring and training,
and of the processor time of a step without that of the process that scores, which depends less on other load; Lathe's divided by
trl's; and the share of a step in which Lathe waits for scores, which a process beside the rank computes.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.throughput import ROOT, run, run_watched

STARTER = ROOT / "static" / "starter"
CONTENDERS = ("trl", "lathe")
PHASES = ("step", "generate", "score", "train", "cpu")
SHORTEST = 0.9  # mean length of the samples of a step, as a share of the longest
WARMING = 2  # first steps that do not count
Figures = dict[str, float]

# In another process, so that this one does not load torch. Of so many tokens the one that ends a sample is rare.
MAKE_MODEL = """
import sys, torch
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM
torch.manual_seed(0)
starter, folder, width, layers = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
known = AutoConfig.from_pretrained(starter)
model = LlamaForCausalLM(LlamaConfig(
    hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers, num_attention_heads=max(1, width // 64),
    vocab_size=8192, bos_token_id=known.bos_token_id, eos_token_id=known.eos_token_id,
    pad_token_id=known.pad_token_id,
))
model.save_pretrained(folder)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--size", default="256x8", help="width x layers of the model")
    parser.add_argument("--method", choices=("full", "lora"), default="lora")
    for name, count in (
        ("prompts", 4),
        ("samples", 8),
        ("tokens", 32),
        ("accumulation", 1),
        ("steps", 8),
        ("repeats", 3),
    ):
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="lathe-policy-"))
    os.environ |= {"LATHE_TOKENS": str(home / "tokens"), "OMP_NUM_THREADS": str(arguments.threads)}
    try:
        settings = prepare(home, arguments)
        result: dict[str, list[Figures]] = {name: [] for name in CONTENDERS}
        for repeat in range(arguments.repeats):
            for name in CONTENDERS if repeat % 2 == 0 else reversed(CONTENDERS):
                steps = (train_lathe if name == "lathe" else train_trl)(home / f"{name}-{repeat}", settings)
                result[name].append(figures(steps, arguments.tokens))
                print(f"{repeat} {name}: {json.dumps(result[name][-1])}", file=sys.stderr, flush=True)
        print(report(result, vars(arguments), as_json=arguments.json))
    finally:
        shutil.rmtree(home, ignore_errors=True)


def prepare(home: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Makes the model, and the settings that both share."""
    model = home / "model"
    model.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(STARTER / name, model)
    command = [sys.executable, "-c", MAKE_MODEL, str(STARTER), str(model), *arguments.size.split("x")]
    subprocess.run(command, check=True, capture_output=True)
    return {
        "model": str(model), "data": str(STARTER / "train.jsonl"), "rewards": "city", "method": arguments.method,
        "reward_code": str(STARTER / "rewards.py"), "num_generations": arguments.samples, "seed": 1,
        "max_completion_length": arguments.tokens, "max_steps": arguments.steps, "learning_rate": 1e-9,  # lengths stay
        "gradient_accumulation_steps": arguments.accumulation, "prompts": arguments.prompts * arguments.steps,
        "micro_batch_size": arguments.prompts * arguments.samples // arguments.accumulation,
    }  # fmt: skip


def train_trl(folder: Path, settings: dict[str, Any]) -> list[Figures]:
    """The steps of the script: time, and the seconds of generation and scoring."""
    folder.mkdir()
    file = folder / "settings.json"
    file.write_text(json.dumps(settings | {"output": str(folder / "out")}))
    printed = run([sys.executable, "-m", "benchmarks.bare_policy", str(file)], dict(os.environ))
    return [json.loads(line) for line in printed.splitlines() if line.startswith('{"step"')]


def train_lathe(folder: Path, settings: dict[str, Any]) -> list[Figures]:
    """The same of the training program, as the supervisor runs it."""
    from training.config.run_config import RunConfig
    from training.run_folder.events import Metrics, decode
    from worker.supervision.launcher import launch

    folder.mkdir()
    code = Path(settings["reward_code"]).read_text()
    same = {name: value for name, value in settings.items() if name != "prompts"} | {"reward_code": code}
    asked = same | {
        "task": "grpo", "data_slice": str(settings["prompts"]), "lr_scheduler": "constant", "warmup": 0, "eval_split": 0,
        "eval_steps": 0, "save_steps": 0, "answer_rows": 0, "lora_r": 16, "lora_alpha": 32, "target_modules": "all-linear",
        "lora_dropout": 0.0, "max_length": 512, "precision": "fp32", "epochs": 1, "baseline_prompts": 0,
    }  # fmt: skip
    (folder / "config.json").write_text(RunConfig.model_validate(asked).model_dump_json())
    config = RunConfig.model_validate_json((folder / "config.json").read_text())
    command = launch(config, folder, ["here/cpu"], int(os.environ["OMP_NUM_THREADS"]))
    cpu = run_watched(command.argv, os.environ | command.env, folder)
    events = [decode(line) for line in (folder / "events.jsonl").read_bytes().splitlines()]
    logged = [event for event in events if isinstance(event, Metrics) and "loss" in event.values]
    return [
        {"time": event.time, "cpu": seconds, "tokens": float(event.values["completion_length"] or 0)}
        | {name: float(event.values[name] or 0) for name in ("generate_seconds", "score_seconds")}
        for event, seconds in zip(logged, cpu, strict=False)
    ]


def figures(steps: list[Figures], tokens: int) -> Figures:
    """Computes the medians of the seconds of a step and of its phases.

    Raises:
        SystemExit: samples are shorter than `tokens`, so that the contenders had other work.
    """
    lengths = [step["tokens"] for step in steps]
    if min(lengths) < SHORTEST * tokens:
        raise SystemExit(f"Samples ended early: {min(lengths)} of {tokens} tokens. Give fewer --tokens.")
    pairs = list(pairwise(steps))[WARMING - 1 :]
    seconds = {
        "step": [after["time"] - before["time"] for before, after in pairs],
        "cpu": [after["cpu"] - before["cpu"] for before, after in pairs],
        "generate": [after["generate_seconds"] for _, after in pairs],
        "score": [after["score_seconds"] for _, after in pairs],
    }
    seconds["train"] = [
        step - generate - score
        for step, generate, score in zip(seconds["step"], seconds["generate"], seconds["score"], strict=True)
    ]
    return {phase: statistics.median(values) for phase, values in seconds.items()}


def report(figures_by_name: dict[str, list[Figures]], arguments: dict[str, Any], *, as_json: bool) -> str:
    medians = {
        name: {phase: statistics.median(run[phase] for run in runs) for phase in PHASES}
        for name, runs in figures_by_name.items()
    }
    pairs = list(zip(figures_by_name["lathe"], figures_by_name["trl"], strict=True))
    ratios = {phase: statistics.median(mine[phase] / other[phase] for mine, other in pairs) for phase in PHASES}
    share = statistics.median(mine["score"] / mine["step"] for mine, _ in pairs)
    if as_json:
        whole = {"settings": arguments, "medians": medians, "lathe_over_trl": ratios, "scoring_share": share}
        return json.dumps(whole | {"runs": figures_by_name}, indent=2)
    lines = ["| seconds | " + " | ".join(PHASES) + " |", "| --- |" + " --- |" * len(PHASES)]
    for name in CONTENDERS:
        lines.append(f"| {name} | " + " | ".join(f"{medians[name][phase]:.4f}" for phase in PHASES) + " |")
    lines.append("| lathe / trl | " + " | ".join(f"{ratios[phase]:.2f}" for phase in PHASES) + " |")
    return "\n".join([*lines, "", f"Lathe waits for scores in {share:.1%} of a step."])


if __name__ == "__main__":
    main()
