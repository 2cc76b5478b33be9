"""The cells of benchmarks/reference/command.py: subjects, batch splits, strategies and methods."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GLOBAL_BATCH = 8
STEPS = 4
# (micro batch, accumulation, ranks), each a global batch of 8 rows.
ONE_RANK = ((8, 1, 1), (4, 2, 1), (2, 4, 1), (1, 8, 1))
TWO_RANKS = ((4, 1, 2), (2, 2, 2), (1, 4, 2))
SHARDED = ("zero0", "zero1", "zero2", "zero3", "fsdp")
PLACES = (
    *((split, "single") for split in ONE_RANK),
    *((split, "ddp") for split in TWO_RANKS),
    *((TWO_RANKS[number % len(TWO_RANKS)], strategy) for number, strategy in enumerate(SHARDED)),
)
# Plain SGD, since the size of Adam's first steps does not depend on the gradient.
COMMON: dict[str, Any] = {
    "precision": "fp32", "optimizer": "sgd", "momentum": 0.0, "warmup": 0, "max_steps": STEPS, "logging_steps": 1,
    "eval_steps": 0, "save_steps": 0, "max_length": 96, "lora_r": 4, "lora_alpha": 8,
}  # fmt: skip
LEARNING_RATES = {"full": 0.1, "lora": 0.5, "adalora": 1.0}
TARGETS = {
    "llama": "q_proj, v_proj",
    "tied": "q_proj, v_proj",
    "thinker": "q_proj, v_proj",
    "mixtral": "q_proj, v_proj",
    "gemma2": "q_proj, v_proj",
    "cohere": "q_proj, v_proj",
    "granite": "q_proj, v_proj",
    "phi": "q_proj, v_proj",
    "gpt2": "c_attn, c_proj",
    "bart": "q_proj, v_proj",
    "t5": "q, v",
}


@dataclass(frozen=True)
class Subject:
    """A task, one of the models and data sets of inputs.py, and its own settings.

    `every` is a stride over PLACES: 2 takes every second one. `method` is set if only one is tested. `teacher` is
    another of the models.
    """

    task: str
    model: str
    data: str
    every: int = 1
    method: str = ""
    teacher: str = ""
    settings: dict[str, Any] = field(default_factory=dict)


def _layouts(name: str, task: str, model: str, data: str, every: int = 1, **settings: Any) -> dict[str, Subject]:
    """Returns the subject with padded, flat and packed batches."""
    layouts = {"padded": "none", "flat": "padding_free", "packed": "packed"}
    return {
        f"{name} {word}": Subject(task, model, data, every, settings={"packing": packing, **settings})
        for word, packing in layouts.items()
    }


_RANKS_MOVE = "init_r=6, target_r=3, tinit=1, tfinal=1, deltaT=1, orth_reg_weight=0.5"
_CHUNKED = {"chunked_loss": "on"}
_SHORT = {"max_length": 40}  # so that some rows are truncated
_REWARD_CODE = """
def letters(prompt, answer, expected):
    return len(set(answer)) / 10 + (len(answer) == len(expected)) / 4
"""
# Seven prompts with four samples each: the fourth step has half a batch.
_SAMPLES = {
    "rewards": "letters", "reward_code": _REWARD_CODE, "num_generations": 4, "max_completion_length": 6, "policy_loss": "dapo",
    "data_slice": "7", "baseline_prompts": 0,
}  # fmt: skip
_DRAWN = {"max_completion_length": 6, "baseline_prompts": 0}
_AGAIN = _SAMPLES | {"num_iterations": 2, "data_slice": "3"}
_ITERATED = {"policy_loss": "grpo", "clip_low": 0.1, "clip_high": 0.12}
_WITH_KL = {"kl_coefficient": 0.5, "clip_low": 0.01, "clip_high": 0.015}  # an adapter changes less in a step
SUBJECTS = {
    **_layouts("sft", "sft", "llama", "answers"),
    **_layouts("chats", "sft", "llama", "chats", every=3),
    "chats with thinking": Subject("sft", "thinker", "chats", every=3, settings={"packing": "none"}),
    **_layouts("pretraining", "pretraining", "llama", "texts", every=2),
    **_layouts("mixture", "sft", "mixtral", "answers", every=2),
    **_layouts("chunked sft", "sft", "llama", "answers", every=2, **_CHUNKED),
    **_layouts("mixture chunked", "sft", "mixtral", "answers", every=5, **_CHUNKED),
    # Models that softcap, multiply or divide their logits, and one whose head has a bias.
    **{
        f"chunked {model}": Subject("sft", model, "answers", every=3, settings=_CHUNKED)
        for model in ("gemma2", "cohere", "granite", "phi")
    },
    "chunked t5": Subject("seq2seq", "t5", "answers", every=2, settings=_CHUNKED),
    "chunked bart": Subject("seq2seq", "bart", "answers", every=3, settings=_CHUNKED),
    "seq2seq t5": Subject("seq2seq", "t5", "answers"),
    "seq2seq bart": Subject("seq2seq", "bart", "answers", every=2),
    "classification": Subject("classification", "llama", "classes"),
    "dpo": Subject("dpo", "llama", "pairs", settings=_SHORT),
    "orpo": Subject("orpo", "llama", "pairs", settings=_SHORT),
    "reward": Subject("reward", "llama", "pairs", settings={"max_length": 256}),  # trl skips longer rows
    "kto": Subject("kto", "llama", "labelled", settings=_SHORT | {"beta": 0.5, "learning_rate": 1.0}),
    "grpo": Subject("grpo", "llama", "answers", settings=_SAMPLES),
    "grpo iterated": Subject("grpo", "llama", "answers", 2, settings=_AGAIN | _ITERATED),
    "grpo with kl": Subject("grpo", "llama", "answers", 3, "lora", settings=_AGAIN | _WITH_KL),
    "distill": Subject("distill", "llama", "answers", teacher="cohere", settings=_DRAWN),
    "distill by the mixture": Subject(
        "distill", "llama", "answers", 2, teacher="cohere", settings=_DRAWN | {"jsd_coefficient": 0.3}
    ),
    "adalora": Subject("sft", "llama", "answers", method="adalora", settings={"method_options": _RANKS_MOVE}),
    "adamw": Subject("sft", "llama", "answers", every=3, settings={"optimizer": "adamw", "learning_rate": 1e-3}),
}


@dataclass(frozen=True)
class Cell:
    """One real run and its reference. `even` is True if the rows fill every global batch of an epoch.

    A rank is killed in step `killed_at`, and the run resumes; 0: none is.
    """

    subject: str
    split: tuple[int, int, int]
    strategy: str
    method: str
    even: bool
    config: dict[str, Any]
    killed_at: int = 0

    @property
    def name(self) -> str:
        split = "x".join(str(part) for part in self.split)
        killed = f", killed in step {self.killed_at}" if self.killed_at else ""
        return f"{self.subject}, {split}, {self.strategy}, {self.method}, {'even' if self.even else 'uneven'}{killed}"

    @property
    def ranks(self) -> int:
        return self.split[2]


def cells(inputs: Path, seed: int = 42) -> list[Cell]:
    """Returns all cells, with their inputs in the folder `inputs`."""
    return [cell for number, name in enumerate(SUBJECTS) for cell in _cells(name, number, inputs, seed)]


def _cells(name: str, number: int, inputs: Path, seed: int) -> Iterator[Cell]:
    """Yields the cells of a subject; method and evenness alternate, so that each meets every split and strategy."""
    subject = SUBJECTS[name]
    for place, (split, strategy) in enumerate(PLACES[number % subject.every :: subject.every], start=number):
        if not _possible(subject, split[0], strategy):
            continue
        method, even = subject.method or ("full", "lora")[place % 2], place // 2 % 2 == 0
        config = COMMON | inputs_of(subject, inputs, even=even) | {"task": subject.task, "method": method, "seed": seed}
        config |= {"micro_batch_size": split[0], "gradient_accumulation_steps": split[1], "num_processes": split[2]}
        config |= {"strategy": strategy, "learning_rate": LEARNING_RATES[method]} | subject.settings
        config |= {"teacher": str(inputs / subject.teacher)} if subject.teacher else {}
        config |= {"target_modules": TARGETS[subject.model]} if method != "full" else {}
        yield Cell(name, split, strategy, method, even, config)


def _possible(subject: Subject, micro: int, strategy: str) -> bool:
    """True if no rule refuses the combination: KTO compares rows within a micro batch, AdaLoRA needs whole matrices, and FSDP
    cannot shard embeddings that encoder and decoder share."""
    if subject.task == "seq2seq" and strategy == "fsdp":
        return False
    return not (subject.task == "kto" and micro == 1) and not (subject.method == "adalora" and strategy in SHARDED)


def inputs_of(subject: Subject, inputs: Path, *, even: bool) -> dict[str, str]:
    return {
        "model": str(inputs / subject.model),
        "data": str(inputs / f"{subject.data}-{'even' if even else 'uneven'}.jsonl"),
        "validation_data": str(inputs / f"{subject.data}-held-out.jsonl"),
    }
