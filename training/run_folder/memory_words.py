"""Describes an out-of-memory error from a rank's report (training/run_folder/events.py)."""

from typing import Any

from training.run_folder.events import GENERATION, OutOfMemory
from training.units import byte_size

_ROWS_NAMED = 8
_GROUPS_NAMED = 6
MEMORY_LIMIT = "Memory limit exceeded"
"""What a run on the CPU exceeds, whose error torch and its log call out of memory."""
_PASSES = {
    GENERATION: "the generation of samples",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer step",
}


def summary(report: OutOfMemory) -> str:
    """One or two sentences: the rank and step, the requested bytes and those in use."""
    what = "Out of GPU memory" if report.device == "cuda" else MEMORY_LIMIT
    where = f"{what} on rank {report.rank} in {_place(report)}."
    if not report.requested_bytes:
        return where
    limit = report.memory.get("limit")
    used = f" with {byte_size(report.memory['allocated'])} of {byte_size(limit)} in use" if limit else ""
    return f"{where} Tried to allocate {byte_size(report.requested_bytes)}{used}."


def facts(report: OutOfMemory) -> list[tuple[str, str]]:
    """The other known facts of the report, as labels and texts."""
    pairs = [
        ("Batch of this rank", ", ".join(map(_tensor, report.tensors))),
        *[(f"Rows on rank {one['rank']}", rows(one)) for one in report.batches],
        ("Allocator", ", ".join(f"{name} {byte_size(count)}" for name, count in report.memory.items())),
        ("In use by", ", ".join(f"{kind} {byte_size(count)}" for kind, count in report.kinds.items() if count)),
        ("Largest allocations", "; ".join(_group(group) for group in report.largest[:_GROUPS_NAMED])),
    ]
    return [(label, text) for label, text in pairs if text]


def rows(batch: dict[str, Any]) -> str:
    """The rows of a rank's batch, the longest first: "row 24 (409 tokens), row 3 of chat.jsonl (19 tokens)"."""
    sets = [f" of {name}" for name in batch.get("sets", ())] or [""] * len(batch["rows"])
    longest = sorted(zip(batch["tokens"], batch["rows"], sets, strict=True), reverse=True)
    named = [f"row {row}{name} ({tokens:,} tokens)" for tokens, row, name in longest[:_ROWS_NAMED]]
    more = len(longest) - _ROWS_NAMED
    return ", ".join(named + ([f"{more} shorter ones"] if more > 0 else []))


def _place(report: OutOfMemory) -> str:
    if report.part == "evaluation":
        return f"batch {report.micro_step} of the evaluation after step {report.step}"
    if report.phase == "probing" and report.part:
        return f"{_PASSES[report.part]} of the probe, which runs the largest batch"
    if report.part and report.step:
        return f"{_PASSES[report.part]} of step {report.step}, micro step {report.micro_step}"
    return f"the phase {report.phase}"


def _tensor(tensor: dict[str, Any]) -> str:
    return f"{tensor['name']} {_shape(tensor['shape'])} {tensor['dtype']} ({byte_size(tensor['bytes'])})"


def _group(group: dict[str, Any]) -> str:
    alike = f"{group['count']} of " if group["count"] > 1 else ""
    return f"{alike}{_shape(group['shape'])} {group['dtype']} ({group['kind']}), {byte_size(group['bytes'])}"


def _shape(shape: list[int]) -> str:
    return " x ".join(f"{length:,}" for length in shape) or "one number"
