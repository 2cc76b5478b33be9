"""Part out_of_memory: real out-of-memory errors, their records, and attempts with the proposed settings."""

from pathlib import Path
from typing import Any

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.runs import Run, configured, make_model, make_rows, train, worst_difference
from training.config.fields import in_words
from training.config.run_config import Changes, RunConfig, stepped_down
from training.forecast.step_down import next_rung_after
from training.run_folder import checkpoints
from training.run_folder.events import OutOfMemory

ATTEMPTS = 8
CURVE_LIMIT = 5e-3
"""Losses of the same global batch in other micro batches: sums in another order; in bf16 on CUDA."""
MIB = 2**20
TABLE = "Attempts"


def measure(bench: Bench) -> None:
    size = {"hidden": 64, "layers": 2} if bench.small else {"hidden": 512, "layers": 8}
    model, data = make_model(bench.home / "model", **size), make_rows(bench.home / "rows.jsonl", 64, 480)
    config = configured(
        model, data, method="full", learning_rate=1e-4, max_steps=6, micro_batch_size=16, max_length=512,
        precision="bf16" if bench.on_cuda else "fp32", on_out_of_memory="step_down",
        memory_limit=None if bench.on_cuda else 65_536,
    )  # fmt: skip
    whole = train(bench.home / "whole", config, bench.device, seconds(bench))
    bench.require("the run without a limit finishes", not whole.problem, whole.problem)
    if whole.problem:
        return
    (before,), (peak,) = (whole.summary["memory"][key] for key in ("before_bytes", "peak_bytes"))
    # A third of the way from the peak down to the model's own memory.
    limit = int((peak - (peak - before) / 3) / MIB)
    if not bench.on_cuda:
        bench.skip("a batch larger than the GPU memory", "CUDA is not available; on CPU the limit counts live storages")
    stepped = attempts(bench, "capped", config.model_copy(update={"memory_limit": limit}))
    if stepped:
        differ = worst_difference(stepped.series("loss"), whole.series("loss"))
        bench.check("losses of the stepped-down run compared with the run without a limit", differ, CURVE_LIMIT)
    if bench.on_cuda and bench.has_time(90, "a batch larger than the card"):
        beyond_the_card(bench)


def seconds(bench: Bench) -> float:
    return max(bench.left(), 5) if bench.on_cuda else 300


def attempts(bench: Bench, name: str, config: RunConfig) -> Run | None:
    """Repeats a run with the settings that the last out-of-memory record proposes, and returns the one that finished."""
    folder, rows = bench.home / name, config.global_batch_size
    for number in range(1, ATTEMPTS + 1):
        run = train(folder, config, bench.device, seconds(bench))
        record = run.out_of_memory[-1] if run.problem and len(run.out_of_memory) == number else None
        rung = proposed(folder, config, record) if record else None
        tell(bench, name, number, config, run, record, rung)
        if not run.problem:
            bench.require(
                f"{name}: the run was out of memory before it finished", number > 1, f"attempt {number} finished"
            )
            return run
        if record is None or rung is None:
            bench.require(f"{name}: the report proposes settings", False, run.problem)
            return None
        check_record(bench, name, number, record)
        config = stepped_down(config, rung)
        same_batch = config.global_batch_size == rows
        bench.require(f"{name}, attempt {number}: the proposal keeps the global batch", same_batch, in_words(rung))
    bench.require(f"{name} finishes within {ATTEMPTS} attempts", False)
    return None


def proposed(folder: Path, config: RunConfig, record: OutOfMemory) -> Changes | None:
    """The settings that a supervisor chooses for the next attempt."""
    from training.ranks.distributed import local_machine

    has_checkpoint = any(checkpoints.sealed(folder))
    return next_rung_after(record, config, local_machine(), has_checkpoint=has_checkpoint)


def tell(
    bench: Bench, name: str, number: int, config: RunConfig, run: Run, record: OutOfMemory | None, rung: Changes | None
) -> None:
    """Adds a row to the table of attempts."""
    outcome: dict[str, Any] = {"outcome": run.problem[:80] or "finished"}
    if record:
        outcome = {
            "outcome": "out of memory", "part": record.part, "requested_bytes": record.requested_bytes,
            "allocated_bytes": record.memory.get("allocated"), "proposed": in_words(rung or {}),
        }  # fmt: skip
    elif not run.problem:
        outcome["allocated_bytes"] = run.summary["memory"]["peak_bytes"][0]
    bench.row(
        TABLE, run=name, attempt=number, micro_batch=config.micro_batch_size,
        accumulation=config.gradient_accumulation_steps, checkpointing=config.gradient_checkpointing.value, **outcome,
    )  # fmt: skip


def check_record(bench: Bench, name: str, number: int, record: OutOfMemory) -> None:
    """Checks that the record has device, part of the step, rows and memory contents."""
    filled = sum(record.kinds.values()) / max(record.memory.get("allocated", 0), 1)
    whole = record.device == bench.device and bool(record.part and record.requested_bytes and record.batches)
    seen = f"{record.part} on {record.device}, {filled:.0%} of the memory explained"
    bench.require(f"{name}, attempt {number}: the report is complete", whole and filled > 0.5, seen)


def beyond_the_card(bench: Bench) -> None:
    """Runs a micro batch whose activations alone exceed the GPU's memory, without a limit."""
    import torch

    length, hidden, layers = 1024, 512, 8
    # 34 bytes per hidden element of a layer in 16 bits (Korthikanti et al., 2022, equation 2, without the attention matrix).
    row = 34 * length * hidden * layers
    rows = 1 << (int(1.2 * torch.cuda.get_device_properties(0).total_memory / row) - 1).bit_length()
    model = make_model(bench.home / "large", hidden=hidden, layers=layers)
    data = make_rows(bench.home / "large.jsonl", rows, 2 * length)
    config = configured(
        model, data, method="full", learning_rate=1e-4, max_steps=1, micro_batch_size=rows, max_length=length,
        precision="bf16", packing="none", on_out_of_memory="step_down",
    )  # fmt: skip
    attempts(bench, "beyond the card", config)
