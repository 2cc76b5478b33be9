"""The kinds of runs of benchmarks.chaos. A run's name is its kind and a number."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

STARTER = Path(__file__).parents[2] / "static" / "starter"
LIGHT = "light"
"""Trains with light ranks (benchmarks/chaos/ranks.py)."""
DISTILL = "distill"
HUB_OWNER = "chaos"


@dataclass(frozen=True)
class Kind:
    """Settings of a run that trains the starter model with torch."""

    settings: dict[str, Any]

    @property
    def ranks(self) -> int:
        return int(self.settings.get("num_processes", 1))


_STEPS = {"max_steps": 14, "save_steps": 4, "max_length": 64, "micro_batch_size": 2, "seed": 1}
_SHORT = _STEPS | {"eval_split": 4, "eval_steps": 7, "answer_rows": 2, "max_new_tokens": 8, "verify_rows": 2}
_SAMPLED = {"max_completion_length": 12, "max_length": 256, "micro_batch_size": 8, "learning_rate": 0.001}
_REWARDED = _SAMPLED | {
    "task": "grpo", "rewards": "city", "num_generations": 4, "num_iterations": 2, "baseline_prompts": 4,
    "reward_code": (STARTER / "rewards.py").read_text(encoding="utf-8"),
}  # fmt: skip
_PUBLISHED = {"num_processes": 2, "merge_adapter": True, "push_to_hub": "OWNER/NAME"}
KINDS = {
    "sft": Kind(_STEPS | {"max_steps": 30, "save_steps": 5, "eval_split": 0}),
    "grpo": Kind(_STEPS | {"eval_split": 0} | _REWARDED),
    "ddp": Kind(_SHORT | _PUBLISHED | {"strategy": "ddp"}),
    "zero3": Kind(_SHORT | _PUBLISHED | {"strategy": "zero3"}),
    "fsdp": Kind(_SHORT | _PUBLISHED | {"strategy": "fsdp"}),
    "grpo-ddp": Kind(_STEPS | {"eval_split": 0} | _REWARDED | _PUBLISHED | {"strategy": "ddp"}),
    DISTILL: Kind(_STEPS | {"eval_split": 0} | _SAMPLED | {"task": "distill"}),  # the teacher is the first run
}
TWO_RANKS = tuple(name for name, kind in KINDS.items() if kind.ranks == 2)
ONE_RANK = tuple(name for name, kind in KINDS.items() if kind.ranks == 1)


def kind_of(run_name: str) -> str:
    """The kind in the name of a run."""
    return run_name.rpartition("-")[0]
