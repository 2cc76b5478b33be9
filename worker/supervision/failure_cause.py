"""The cause of a failed run in one sentence, with the first fix: what its page and its notifications say. Pure."""

from dataclasses import dataclass
from typing import Any

DIVERGED = (
    "Training diverged",
    "The loss is NaN or infinite.",
    "Lower the learning rate or lengthen the warmup.",
)


@dataclass(frozen=True)
class FailureCause:
    """`changes`: settings that the diagnosis proposes for a new run, mostly empty."""

    title: str
    message: str
    fix: str
    changes: dict[str, Any]


def failure_cause(error: dict[str, Any], report: dict[str, Any] | None, *, proposed: bool = False) -> FailureCause:
    """The cause from the ranks' memory report if there is one, then from the diagnosis, then from the error itself.

    `error` is that of the run, `report` the out-of-memory report of its last attempt. `proposed`: the caller offers to resume
    with settings that need less memory.
    """
    message, fix = str(error.get("message") or "The run failed."), str(error.get("fix") or "")
    if proposed:
        return FailureCause(_memory_title(report, message), message, "The global batch size stays the same.", {})
    if report:
        return FailureCause(_memory_title(report, message), message, fix, {})
    if diagnosis := error.get("diagnosis"):
        explanation = str(diagnosis["explanation"]).removeprefix(diagnosis["title"]).strip() or message
        first = next(iter(diagnosis["fix"]), fix)
        return FailureCause(str(diagnosis["title"]).rstrip("."), explanation, first, dict(diagnosis["changes"]))
    phase, rank = error.get("phase"), error.get("rank")
    where = f" while {phase}" if phase else ""
    return FailureCause(f"Failed{where}{'' if rank is None else f' on rank {rank}'}", message, fix, {})


def _memory_title(report: dict[str, Any] | None, message: str) -> str:
    """GPU memory or a memory limit, by the device that the rank reported."""
    if report is None:
        return message.partition(" on rank")[0].partition(".")[0]
    return "Out of GPU memory" if report.get("device") == "cuda" else "Memory limit exceeded"
