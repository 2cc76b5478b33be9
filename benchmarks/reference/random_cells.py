"""Cells drawn at random from everything that a run can combine, for `python -m benchmarks.reference --random N --seed S`."""

import random
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from benchmarks.reference.cells import COMMON, ONE_RANK, STEPS, SUBJECTS, TARGETS, TWO_RANKS, Cell, Subject, inputs_of
from training.config.choices import ChunkedLoss
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.config.task import Task
from training.rules import check

Drawn = dict[str, Any]

# DeepSpeed's Ulysses: two ranks share each sequence.
SHARED = tuple((micro, accumulation, 2) for micro, accumulation, _ in ONE_RANK)
SHARED_BY_PAIRS = ((4, 1, 4), (2, 2, 4), (1, 4, 4))
CAUSAL = ("llama", "tied", "mixtral", "gemma2", "cohere", "granite", "phi", "gpt2")
SCORED = ("llama", "phi")  # with a class for sequences whose head is initialized at random
MODELS = {
    "sft": (*CAUSAL, "thinker"), "pretraining": CAUSAL, "seq2seq": ("t5", "bart"), "classification": SCORED, "reward": SCORED,
    "dpo": SCORED, "orpo": SCORED, "kto": SCORED,
}  # fmt: skip
DATA = {
    "sft": ("answers", "chats", "gaps", "weighted"), "pretraining": ("texts",), "seq2seq": ("answers",),
    "classification": ("classes",), "kto": ("labelled",),
}  # fmt: skip
TASKS = ("sft", "sft", "sft", "pretraining", "pretraining", *MODELS)  # these have more layouts, models and strategies
# Tasks and models whose sequences ranks can share. Each part of mixtral's sequences would balance its experts alone.
SHARING = ("sft", "pretraining")
SHARED_MODELS = ("llama", "cohere", "granite", "phi")
METHODS: dict[str, Drawn] = {
    "full": {"method": "full", "learning_rate": 0.1},
    "lora": {"method": "lora", "learning_rate": 0.5},
    "dora": {"method": "lora", "learning_rate": 0.5, "use_dora": True},
    "rslora": {"method": "lora", "learning_rate": 0.5, "use_rslora": True},
    "all-linear": {"method": "lora", "learning_rate": 0.2, "target_modules": "all-linear"},
}
# What embeddings and head train, which some models share, and an adapter that continues another.
NAMED_MODULES: dict[str, Drawn] = {
    "embeddings": {"method": "lora", "learning_rate": 0.2, "modules_to_save": "embed_tokens"},
    "embeddings and head": {"method": "lora", "learning_rate": 0.2, "modules_to_save": "embed_tokens, lm_head"},
    "tokens": {"method": "lora", "learning_rate": 0.5, "method_options": "trainable_token_indices=[40, 41, 50]"},
    "head": {"method": "lora", "learning_rate": 0.2, "target_modules": "q_proj, v_proj, lm_head"},
    "continued": {"method": "lora", "learning_rate": 0.5, "target_modules": "q_proj, v_proj"},
}
LLAMAS = ("llama", "tied")
NOISY = (Task.SFT, Task.PRETRAINING)
STRATEGIES = ("single", "ddp", "zero0", "zero1", "zero2", "zero3", "fsdp")
# Each setting with the values that are drawn; the first, a run's default, half of the time.
SETTINGS: dict[str, tuple[Any, ...]] = {
    "packing": ("none", "padding_free", "packed"),
    "gradient_checkpointing": ("none", "full", "selective"),
    "chunked_loss": ("auto", "on"),
    "batch_order": ("shuffled", "by_length"),
    "optimizer": ("sgd", "adamw"),
    "momentum": (0.0, 0.9),
    "weight_decay": (0.0, 0.1),
    "adam_beta2": (0.999, 0.95),
    "lr_scheduler": ("linear", "cosine", "constant_with_warmup"),
    "warmup": (0, 2),
    "precision": ("fp32", "bf16"),
    "offload_optimizer": ("none", "cpu"),
    "offload_param": ("none", "cpu"),
    "async_save": (True, False),
    "max_grad_norm": (1.0, 0.1),
    "streaming": (False,),
    "neftune_noise_alpha": (None,),
}
# Settings that exclude so many others that they are drawn together.
TOGETHER: tuple[Drawn, ...] = (
    {"streaming": True, "batch_order": "shuffled", "packing": "none"},
    {"streaming": True, "batch_order": "shuffled", "packing": "padding_free"},
    {"neftune_noise_alpha": 5.0, "packing": "none"},
)
ADAM_RATE = 0.01  # times a method's rate for SGD


def random_cells(count: int, inputs: Path, seed: int) -> list[Cell]:
    """Returns `count` different cells that no rule refuses, always the same for a seed."""
    generator, drawn = random.Random(seed), dict[str, Cell]()
    while len(drawn) < count:
        cell = _draw(generator, inputs)
        if _accepted(cell):
            drawn.setdefault(cell.name, cell)
    return list(drawn.values())


def _draw(generator: random.Random, inputs: Path) -> Cell:
    strategy, even = generator.choice(STRATEGIES), generator.random() < 0.5
    shared = strategy.startswith("zero") and generator.random() < 0.3
    named = not shared and generator.random() < 1 / 3
    task = generator.choice(SHARING if shared or named else TASKS)
    model = generator.choice(SHARED_MODELS if shared else LLAMAS if named else MODELS[task])
    methods = NAMED_MODULES if named else METHODS
    method = generator.choice(sorted(methods))
    subject = Subject(task, model, generator.choice(DATA.get(task, ("pairs",))))
    splits = (*SHARED, *SHARED_BY_PAIRS) if shared else ONE_RANK if strategy == "single" else TWO_RANKS
    micro, accumulation, ranks = split = generator.choice(splits)
    settings = {
        name: values[0] if generator.random() < 0.5 else generator.choice(values) for name, values in SETTINGS.items()
    }
    settings |= generator.choice(TOGETHER) if task in SHARING and generator.random() < 0.5 else {}
    settings |= {"sequence_parallel_size": 2, "packing": "none", "chunked_loss": "auto"} if shared else {}
    config = COMMON | inputs_of(subject, inputs, even=even) | SUBJECTS.get(task, subject).settings
    config |= {
        "task": task,
        "target_modules": TARGETS[subject.model],
        "strategy": strategy,
        "seed": generator.randrange(1000),
    }
    config |= {"micro_batch_size": micro, "gradient_accumulation_steps": accumulation, "num_processes": ranks}
    config |= methods[method] | settings
    config |= {"weight_field": "weight"} if subject.data == "weighted" else {}
    config |= {"init_adapter": str(inputs / f"{model}-adapter")} if method == "continued" else {}
    if settings["optimizer"] == "adamw":
        config["learning_rate"] *= ADAM_RATE
    killed_at = generator.randint(2, STEPS) if generator.random() < 1 / 3 else 0
    if killed_at:
        config["save_steps"] = 1
    kind = "mixture" if subject.model == "mixtral" else task
    special = " ".join(f"{name}={value}" for name, value in settings.items() if value != SETTINGS.get(name, (1,))[0])
    name = f"{kind} {subject.model} {subject.data}{' ' if special else ''}{special}"
    return Cell(name, split, strategy, method, even, config, killed_at)


def _accepted(cell: Cell) -> bool:
    """True if the configuration is valid and no rule refuses it."""
    try:
        config = RunConfig.model_validate(cell.config)
        if config.neftune_noise_alpha and (config.task not in NOISY or config.sequence_parallel_size > 1):
            return False  # the reference has no noise there
        if (cell.method, config.chunked_loss) == ("tokens", ChunkedLoss.ON) and "tied" in cell.name.split():
            return False  # refused before Start, where the model is known
    except ValidationError:
        return False
    return not any(conflict.blocking for conflict in check(config, Machine()))
