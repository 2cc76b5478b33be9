"""Configurations drawn at random: model, task, method, strategy, ranks, precision, optimizer, checkpointing, lengths, layout.

None offloads: on a CPU the offloaded tensors are in the memory that is counted. None takes torchao's optimizers, which
torch.compile refuses to compile while storages are counted.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from peft.utils import constants
from pydantic import ValidationError
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

from benchmarks.forecast.random_models import CAUSAL, EXPERTS, SEQ2SEQ, Values, draw_model
from training.config.choices import Method, Packing, Strategy
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.model_info.families import shape_of, why_padded
from training.rules import check

STEPS = 2
_STEPS_OF_ZERO_3 = 4  # DeepSpeed fetches weights ahead once it has recorded a pass
_WORK = 1.5e9  # parameters x tokens in a step of all ranks: a run of a few seconds
_LEAST_PARAMETERS = 2_000_000
_ATTEMPTS = 100
_TASKS = {
    "sft": 50, "pretraining": 8, "seq2seq": 12, "dpo": 6, "kto": 5, "orpo": 5, "reward": 5, "classification": 6,
}  # fmt: skip
_METHODS = {"full": 34, "lora": 34, "qlora": 14, "ia3": 3, "adalora": 2, "loha": 2, "vera": 2, "oft": 2, "ln_tuning": 1}
_STRATEGIES = {"single": 46, "ddp": 12, "zero1": 6, "zero2": 11, "zero3": 11, "fsdp": 14}
_OPTIMIZERS = {
    "adamw": 58, "adamw_8bit": 8, "adafactor": 8, "lion": 5, "lion_8bit": 4, "muon": 5, "sgd": 6, "adamw_anyprecision": 3,
}  # fmt: skip
_KNOWN_MODULES = {
    Method.IA3: constants.TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING,
    Method.LN_TUNING: constants.TRANSFORMERS_MODELS_TO_LNTUNING_TARGET_MODULES_MAPPING,
}
"""Families for which PEFT chooses the modules of a method."""


@dataclass
class RandomCase:
    """A configuration with the values of its model's config.json and the lengths in characters of its rows."""

    seed: int
    number: int
    model: Values
    config: dict[str, Any]
    rows: list[tuple[int, int]] = field(default_factory=list)

    @property
    def ranks(self) -> int:
        return int(self.config["num_processes"])

    @property
    def strategy(self) -> str:
        return str(self.config["strategy"])

    @property
    def name(self) -> str:
        """The seed and the settings that differ from the defaults."""
        hidden = (
            "model",
            "data",
            "memory_limit",
            "max_steps",
            "seed",
            "verify_rows",
            "logging_steps",
            "epochs",
            "warmup",
        )
        words = [f"{name}={value}" for name, value in self.config.items() if name not in hidden]
        return f"{self.seed}:{self.number} {self.model['model_type']} {' '.join(words)}"


def draw(seed: int, number: int, task: str | None = None) -> RandomCase:
    """The configuration `number` of a seed, of any task or a given one. Each draw that a rule refuses, or that is too large, is
    drawn again."""
    dice = Random(f"{seed}:{number}")
    while True:
        # These stay, or else ranks would be rare, since they multiply the work.
        fixed = {"task": task or _weighted(dice, _TASKS), **_strategy(dice)}
        for _ in range(_ATTEMPTS):
            if case := _attempt(dice, seed, number, fixed):
                return case


def _attempt(dice: Random, seed: int, number: int, fixed: dict[str, Any]) -> RandomCase | None:
    task = fixed["task"]
    family = dice.choice(SEQ2SEQ if task == "seq2seq" else CAUSAL)
    model = draw_model(dice, family)
    settings = {**fixed, **_method(dice), **_batch(dice, task), **_optimization(dice)}
    settings |= {"model": "model", "data": "data", "seed": dice.randrange(1000), "epochs": 1, "verify_rows": 0}
    settings |= {"memory_limit": 65_536, "logging_steps": 1, "warmup": 0}
    try:
        config = RunConfig.model_validate(settings)
    except ValidationError:
        return None
    parameters = shape_of(model).parameters
    work = parameters * config.max_length * config.global_batch_size * (2 if config.task.traits.pairs else 1)
    mixed = config.packing in (Packing.PADDING_FREE, Packing.PACKED) and why_padded(family)
    refused = mixed or _fails(config, family) or any(item.blocking for item in check(config, Machine()))
    if refused or work > _WORK or parameters < _LEAST_PARAMETERS:
        return None
    return RandomCase(seed, number, model, settings, _rows(dice, config))


def _fails(config: RunConfig, family: str) -> bool:
    """True if a run would end with an error that names the cause: no class for the task, no known modules, or PEFT refuses it."""
    no_class = not config.task.traits.generates and family not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
    known = _KNOWN_MODULES.get(config.method)
    unknown = known is not None and family not in known
    refused = config.method.is_lora and (config.lora_dropout > 0 or config.use_dora) and family in EXPERTS
    conv1d = config.method in (Method.LOHA, Method.OFT) and family == "gpt2"
    return no_class or unknown or refused or conv1d


def _weighted(dice: Random, weights: dict[str, int]) -> str:
    return dice.choices(list(weights), list(weights.values()))[0]


def _strategy(dice: Random) -> dict[str, Any]:
    strategy = _weighted(dice, _STRATEGIES)
    settings: dict[str, Any] = {"strategy": strategy, "num_processes": 1}
    if strategy != "single":
        settings["num_processes"] = dice.choice((2,) * 9 + (4,))
    return settings


def _method(dice: Random) -> dict[str, Any]:
    method = _weighted(dice, _METHODS)
    settings: dict[str, Any] = {"method": method}
    if method == "full":
        layers = {"trainable_layers": dice.randint(1, 2)} if dice.random() < 0.15 else {}
        return settings | {"learning_rate": 1e-5} | layers
    if method == "qlora":
        settings["quantization"] = dice.choice(("4bit", "4bit", "8bit"))
        settings["double_quantization"] = dice.random() < 0.7
    if method in ("lora", "qlora"):
        settings |= {"lora_r": dice.choice((4, 8, 16, 64)), "lora_dropout": dice.choice((0.0, 0.0, 0.05))}
        settings |= {"target_modules": dice.choice(("all-linear", "all-linear", "auto"))}
        settings |= {"use_dora": True} if dice.random() < 0.1 else {}
    return settings


def _batch(dice: Random, task: str) -> dict[str, Any]:
    length = dice.choice((64, 96, 128, 192, 256, 384, 512, 768))
    settings = {
        "max_length": length,
        "micro_batch_size": dice.choice((1, 2, 2, 3, 4, 8)),
        "gradient_accumulation_steps": dice.choice((1, 1, 2, 3)),
        "packing": dice.choice(("auto", "auto", "none", "packed")) if task in ("sft", "pretraining") else "auto",
        "gradient_checkpointing": dice.choice(("none", "none", "full", "selective", "offloaded")),
        "precision": dice.choice(("fp32", "fp32", "bf16")),
    }
    if dice.random() < 0.1:
        settings["attention"] = "eager"
    if task == "seq2seq" and dice.random() < 0.5:
        settings["max_target_length"] = max(16, length // 4)
    if task == "grpo":  # the probe trains on samples of maximum length, which a short run may not draw
        settings |= {"num_generations": dice.choice((2, 4)), "max_completion_length": dice.choice((16, 64, 128))}
        settings |= {"rewards": "json_valid", "baseline_prompts": 0, "probe": "on"}
    return settings


def _optimization(dice: Random) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "optimizer": _weighted(dice, _OPTIMIZERS),
        "max_grad_norm": dice.choice((1.0, 1.0, 0.0)),
    }
    settings |= {"weights_precision": "bf16"} if dice.random() < 0.05 else {}
    evaluates = dice.random() < 0.4
    settings |= {"eval_split": 4, "eval_steps": 2} if evaluates else {"eval_split": 0, "eval_steps": 0}
    return settings | {"save_steps": dice.choice((0, 2))}


def _rows(dice: Random, config: RunConfig) -> list[tuple[int, int]]:
    """The characters of the prompt and of the answer of each row; byte tokens, so a character is a token."""
    held_out, equal, longest = int(config.eval_split), dice.random() < 0.6, config.max_length
    if config.task.traits.pairs:
        equal = True  # the forecast takes pairs of maximum length
    per_sequence = 3 if config.packing == "packed" else 1
    steps = _STEPS_OF_ZERO_3 if config.strategy is Strategy.ZERO3 else STEPS
    count = steps * config.global_batch_size * per_sequence + held_out
    share = dice.choice((0.25, 0.5, 0.75))
    rows = []
    for _ in range(count):
        total = longest if equal else dice.randint(longest // 4, longest)
        if config.task.traits.has_encoder:
            target = config.max_target_length or config.max_length
            rows.append((total, target if equal else dice.randint(max(4, target // 4), target)))
        else:
            prompt = max(2, int(total * share))
            rows.append((prompt, max(2, total - prompt + 8 * equal)))
    return rows


def write_rows(case: RandomCase, file: Path) -> None:
    """Writes the rows in the format of the task."""
    lines = []
    for number, (prompt, answer) in enumerate(case.rows):
        asked, answered = "a" * prompt, "b" * answer
        match case.config["task"]:
            case "pretraining":
                row: dict[str, Any] = {"text": asked + answered}
            case "dpo" | "orpo" | "reward":
                row = {"prompt": asked, "chosen": answered, "rejected": "c" * answer}
            case "kto":
                row = {"prompt": asked, "completion": answered, "label": number % 2 == 0}
            case "classification":
                row = {"text": asked + answered, "label": ("even", "odd")[number % 2]}
            case _:
                row = {"prompt": asked, "completion": answered}
        lines.append(json.dumps(row) + "\n")
    file.write_text("".join(lines), encoding="utf-8")
