"""Part numbers: losses on CUDA in fp32 and bf16 against fp32 on CPU, a killed and resumed run, a saved and reloaded adapter."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.runs import (
    Run,
    configured,
    make_model,
    make_rows,
    records,
    train,
    train_all,
    train_until,
    worst_difference,
)
from training.config.run_config import RunConfig
from training.run_folder.events import CheckpointSaved, Resumed

FP32_LIMIT, BF16_LIMIT = 1e-4, 5e-2
"""Relative differences of losses: fp32 sums in another order; bf16 keeps 8 bits."""
RELOADED_LIMIT = 1e-5
TABLE = "Losses against the reference"


def measure(bench: Bench) -> None:
    model = make_model(bench.home / "model", hidden=64 if bench.small else 512, layers=2 if bench.small else 8)
    data = make_rows(bench.home / "rows.jsonl", 64, 256)
    steps = 9 if bench.small else 30

    def config(**settings: Any) -> RunConfig:
        shared = {"max_steps": steps, "micro_batch_size": 4, "precision": "fp32"}
        return configured(model, data, **shared | settings)

    lora = config(method="lora", lora_r=8)
    with ThreadPoolExecutor(1) as beside:
        resumed = beside.submit(kill_and_resume, bench, config(method="lora", lora_r=8, save_steps=steps // 3))
        saved = train_and_reload(bench, lora)
        compare_precisions(bench, config, saved)
        again = resumed.result()
    steps_resumed = [event.step for event in again.events if isinstance(event, Resumed)]
    bench.require("a run was killed and resumed from its checkpoint", bool(steps_resumed), f"at {steps_resumed}")
    compare(bench, f"lora fp32 on {bench.device}, killed and resumed", again, saved, FP32_LIMIT)


def train_and_reload(bench: Bench, config: RunConfig) -> Run:
    """Trains in this process, and checks that base model and saved adapter give the logits of the trained model."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from training.ranks.stopping import StopSignal
    from training.reports.report import Report
    from training.results import finish
    from training.train import train as train_here

    folder = bench.home / "reloaded"
    folder.mkdir()
    tokens = (torch.arange(96, device=bench.device) * 31 % 256)[None]
    trained: list[torch.Tensor] = []
    save = finish.save_result

    def save_and_keep(trainer: Any, *arguments: Any) -> Path:
        with torch.no_grad():
            trained.append(trainer.model.eval()(input_ids=tokens).logits.float())
        return save(trainer, *arguments)

    with patch.object(finish, "save_result", save_and_keep):
        train_here(config, folder, Report(folder, rank=0), StopSignal())
    base = AutoModelForCausalLM.from_pretrained(config.model, dtype=torch.float32)
    again = PeftModel.from_pretrained(base, str(folder / "adapter")).to(bench.device).eval()
    with torch.no_grad():
        logits = again(input_ids=tokens).logits.float()
        with again.disable_adapter():
            moved = float((again(input_ids=tokens).logits - logits).norm() / logits.norm())
    bench.check(
        f"reloaded adapter, logits on {bench.device}",
        float((logits - trained[0]).norm() / trained[0].norm()),
        RELOADED_LIMIT,
    )
    bench.require("training changed the logits", moved > 100 * RELOADED_LIMIT, f"by {moved:.2g}")
    return Run(folder, 0, records(folder))


def compare_precisions(bench: Bench, config: Any, saved: Run) -> None:
    """Compares precisions with fp32 on CPU; without CUDA only bf16 on CPU."""
    device = bench.device
    lora, full = {"method": "lora", "lora_r": 8}, {"method": "full", "learning_rate": 1e-4}
    jobs = {"lora bf16": (config(**lora | {"precision": "bf16"}), device)}
    if bench.on_cuda:
        jobs |= {
            "lora fp32 cpu": (config(**lora), "cpu"),
            "full fp32 cpu": (config(**full), "cpu"),
            "full fp32": (config(**full), device),
            "full bf16": (config(**full | {"precision": "bf16"}), device),
        }
    else:
        bench.skip("fp32 on CUDA compared with fp32 on CPU", "CUDA is not available")
    runs = train_all(bench, jobs) | {"lora fp32": saved}
    for name in ("lora fp32", "full fp32", "lora bf16", "full bf16"):
        method, precision = name.split()
        reference = f"{method} fp32 cpu" if bench.on_cuda else "lora fp32"
        if name in runs and name != reference:
            limit = FP32_LIMIT if precision == "fp32" else BF16_LIMIT
            compare(bench, f"{method} {precision} on {device}", runs[name], runs[reference], limit)


def compare(bench: Bench, name: str, run: Run, reference: Run, limit: float) -> None:
    """Adds a row and a check that compare a run's losses with the reference's."""
    losses, expected = run.series("loss"), reference.series("loss")
    if run.problem or reference.problem:
        bench.require(f"{name}: both runs finish", False, run.problem or reference.problem)
        return
    first = min(expected)
    norms = worst_difference(run.series("grad_norm"), reference.series("grad_norm"))
    bench.row(
        TABLE, run=name, steps=len(expected), first_loss=losses[first], last_loss=losses[max(expected)],
        first_difference=abs(losses[first] / expected[first] - 1), worst_difference=worst_difference(losses, expected),
        worst_gradient_norm_difference=norms,
    )  # fmt: skip
    bench.check(f"{name}: worst relative difference of the losses", worst_difference(losses, expected), limit)


def kill_and_resume(bench: Bench, config: RunConfig) -> Run:
    """Kills a run after its first checkpoint, and restarts it in its folder until it finishes."""
    seconds = max(bench.left(), 5) if bench.on_cuda else 600
    for number in range(3):  # a run that finished before the kill proves nothing
        folder = bench.home / f"killed-{number}"
        if train_until(folder, config, bench.device, seconds, lambda event: isinstance(event, CheckpointSaved)):
            break
    return train(folder, config, bench.device, seconds)
