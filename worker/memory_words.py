"""Memory that ran out, in words: from the report of a rank (training/events.py)."""

from typing import Any

from training.events import OutOfMemory
from worker.units import size

_ROWS_NAMED = 8
_GROUPS_NAMED = 6
_PASSES = {"forward": "the forward pass", "backward": "the backward pass", "optimizer": "the optimizer's part"}


def summary(told: OutOfMemory) -> str:
    """One sentence: where it was, what was asked for, and what there was."""
    device = "GPU memory" if told.device == "cuda" else "Memory"
    asked = f": {size(told.requested_bytes)} were asked for" if told.requested_bytes else ""
    limit = told.memory.get("limit")
    held = f" while {size(told.memory['allocated'])} of {size(limit)} were allocated" if limit else ""
    return f"{device} ran out on rank {told.rank} in {_place(told)}{asked}{held if asked else ''}."


def facts(told: OutOfMemory) -> list[tuple[str, str]]:
    """What else the report says, as labels and texts; only what is known."""
    pairs = [
        ("Batch of this rank", ", ".join(_tensor(one) for one in told.tensors)),
        *[(f"Rows on rank {one['rank']}", rows(one)) for one in told.batches],
        ("Allocator", ", ".join(f"{name} {size(count)}" for name, count in told.memory.items())),
        ("Allocated for", ", ".join(f"{kind} {size(count)}" for kind, count in told.kinds.items() if count)),
        ("Largest", "; ".join(_group(group) for group in told.largest[:_GROUPS_NAMED])),
    ]
    return [(label, text) for label, text in pairs if text]


def rows(batch: dict[str, Any]) -> str:
    """The rows of a rank's batch, the longest first: "row 24 (409 tokens), row 3 (19 tokens)"."""
    longest = sorted(zip(batch["tokens"], batch["rows"], strict=True), reverse=True)
    named = [f"row {row} ({tokens:,} tokens)" for tokens, row in longest[:_ROWS_NAMED]]
    more = len(longest) - _ROWS_NAMED
    return ", ".join(named + ([f"{more} shorter ones"] if more > 0 else []))


def _place(told: OutOfMemory) -> str:
    if told.part == "evaluation":
        return f"batch {told.micro_step} of the evaluation after step {told.step}"
    if told.phase == "probing" and told.part:
        return f"{_PASSES[told.part]} of the probe, which tries the largest batch of the run"
    if told.part and told.step:
        return f"{_PASSES[told.part]} of step {told.step}, micro step {told.micro_step}"
    return f"the phase {told.phase}"


def _tensor(tensor: dict[str, Any]) -> str:
    return f"{tensor['name']} {_shape(tensor['shape'])} {tensor['dtype']} ({size(tensor['bytes'])})"


def _group(group: dict[str, Any]) -> str:
    alike = f"{group['count']} of " if group["count"] > 1 else ""
    return f"{alike}{_shape(group['shape'])} {group['dtype']} ({group['kind']}), {size(group['bytes'])}"


def _shape(shape: list[int]) -> str:
    return " x ".join(f"{length:,}" for length in shape) or "one number"
