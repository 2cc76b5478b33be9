"""Reads a run of benchmarks/reference/command.py from its folder, and compares it with its reference."""

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer
from transformers.utils import logging

from benchmarks.reference.cells import STEPS, Cell
from benchmarks.reference.distillation import StudentLearner
from benchmarks.reference.plain_loop import LEARNERS, Curve, Learner, load, reloaded, run
from benchmarks.reference.ranks import INITIAL
from benchmarks.reference.rows import classes_of, read, rows_of
from benchmarks.reference.samples import SampleLearner, prompt_of
from benchmarks.reference.steps import MismatchError, read_samples, read_steps

logging.disable_progress_bar()
logging.set_verbosity_error()
torch.set_num_threads(1)  # tensors are tiny, and the ranks use the other cores
_KINDS = {
    "seq2seq": ("AutoModelForSeq2SeqLM", "SEQ_2_SEQ_LM"),
    "classification": ("AutoModelForSequenceClassification", "SEQ_CLS"),
    "reward": ("AutoModelForSequenceClassification", "SEQ_CLS"),
}


def differences(cell: Cell, folder: Path) -> dict[str, float]:
    """Returns the largest relative differences of loss, gradient norm, evaluation loss, saved weights and their evaluation.

    Raises:
        MismatchError: the run cannot be compared.
    """
    learner, tokens = _learner(cell, folder)
    steps = read_steps(folder, cell, tokens)
    before, after = folder / "reference-before", folder / "reference-after"
    learner.model.save_pretrained(before)
    if isinstance(learner, SampleLearner):
        learner.samples_of_steps = read_samples(folder, cell, steps)
    expected = run(learner, steps, cell.config)
    learner.model.save_pretrained(after)
    if isinstance(learner, SampleLearner) and learner.faults:
        raise MismatchError(learner.faults[0])
    reported = _curve(folder)
    if len(reported.losses) != STEPS or len(reported.gradients) != STEPS:
        raise MismatchError(
            f"reported {len(reported.losses)} losses and {len(reported.gradients)} gradient norms of {STEPS} steps"
        )
    saved = folder / ("model" if cell.method == "full" else "adapter")
    # Some terms cancel, so that a difference is relative to theirs, which are near 1: those of GRPO, and of a divergence from a
    # mixture of distributions that differ little.
    mixes = 0 < cell.config.get("jsd_coefficient", 0) < 1
    least = {"loss": float(cell.config["task"] == "grpo" or mixes), "evaluation": float(mixes)}
    return {
        "loss": _largest(reported.losses, expected.losses, at_least=least["loss"]),
        "gradient": _largest(reported.gradients, expected.gradients),
        "evaluation": _largest([reported.evaluation], [expected.evaluation], at_least=least["evaluation"]),
        "weights": _distance(_weights(saved), _weights(after), _weights(before)),
        "reloaded": _largest([_reloaded(cell, learner, saved)], [expected.evaluation]),
    }


def _learner(cell: Cell, folder: Path) -> tuple[Learner, list[list[int]]]:
    """Returns the reference's model with its data, and the tokens of every training row."""
    config, initial = cell.config, folder / INITIAL
    task, model, limit = config["task"], Path(config["model"]), config["max_length"]
    kind, peft_task = _kind(task)
    data, held_out = Path(config["data"]), Path(config["validation_data"])
    adapter = _adapter(cell, peft_task)
    if task in ("dpo", "kto", "orpo", "reward"):
        from benchmarks.reference.trl import PreferenceLearner

        settings = {"output_dir": str(folder / "trl"), "max_length": limit}
        settings |= {} if task == "reward" else {"beta": config.get("beta", 0.1)}
        begun = load(kind, model, initial, adapter, **_head(cell))
        places = {"micro": cell.split[0], "ranks": cell.ranks}
        learner = PreferenceLearner(task, begun, model, read(data), read(held_out), settings, **places)
        return learner, learner.tokens()
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows, others = (rows_of(task, file, tokenizer, limit) for file in (data, held_out))
    if task == "distill":
        teacher = reloaded(kind, Path(config["teacher"]), None)
        begun = load(kind, model, initial, adapter)
        learned = StudentLearner(begun, rows, others, config, tokenizer, teacher=teacher)
        return learned, [prompt_of(row) for row in rows]
    if task == "grpo":
        rows = rows[: int(config["data_slice"])]
        begun = load(kind, model, initial, adapter)
        return SampleLearner(begun, rows, others, config, tokenizer), [prompt_of(row) for row in rows]
    special = cell.method if cell.method == "adalora" else cell.subject.split()[0]
    make = LEARNERS.get(special, LEARNERS[task])
    begun = load(kind, model, initial, adapter, **_head(cell))
    return make(begun, rows, others, noise=config.get("neftune_noise_alpha") or 0.0), [row.ids for row in rows]


def _kind(task: str) -> tuple[str, str]:
    """Returns transformers' class of a task's models, and PEFT's name of the task."""
    return _KINDS.get(task, ("AutoModelForCausalLM", "CAUSAL_LM"))


def _head(cell: Cell) -> dict[str, int]:
    """Returns the size of a classifier's or reward model's head."""
    match cell.config["task"]:
        case "classification":
            return {"num_labels": len(classes_of(read(Path(cell.config["data"]))))}
        case "reward":
            return {"num_labels": 1}
    return {}


def _reloaded(cell: Cell, learner: Learner, saved: Path) -> float:
    """Returns the evaluation loss of the saved result as plain transformers and PEFT load it."""
    base = None if cell.method == "full" else Path(cell.config["model"])
    learner.take(reloaded(_kind(cell.config["task"])[0], saved, base, **_head(cell)))
    with torch.no_grad():
        return learner.evaluate()


def _adapter(cell: Cell, task: str) -> Any:
    from peft import AdaLoraConfig, LoraConfig

    targets = cell.config.get("target_modules", "all-linear")
    shared: dict[str, Any] = {
        "task_type": task,
        "target_modules": targets if targets == "all-linear" else targets.split(", "),
    }
    match cell.config["method"]:
        case "lora" if "init_adapter" in cell.config:
            return Path(cell.config["init_adapter"])
        case "lora":
            own: dict[str, Any] = {
                name: cell.config[name] for name in ("use_dora", "use_rslora") if name in cell.config
            }
            if modules := cell.config.get("modules_to_save"):
                own["modules_to_save"] = modules.split(", ")
            if option := cell.config.get("method_options"):
                name, _, value = option.partition("=")
                own[name] = json.loads(value)
            return LoraConfig(**shared, **own, r=cell.config["lora_r"], lora_alpha=cell.config["lora_alpha"])
        case "adalora":
            options = dict(option.split("=") for option in cell.config["method_options"].split(", "))
            return AdaLoraConfig(
                **shared, total_step=STEPS, **{name: json.loads(value) for name, value in options.items()}
            )
    return None


def _curve(folder: Path) -> Curve:
    """Returns the metrics that the run reported."""
    steps: dict[int, dict[str, float]] = {}
    evaluation = math.nan
    for line in (folder / "events.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        values = {name: math.nan if value is None else value for name, value in (record.get("values") or {}).items()}
        if "loss" in values:
            steps[record["step"]] = values  # a step that was taken again after a resume counts once
        evaluation = values.get("eval_loss", evaluation)
    return Curve(
        [v["loss"] for v in steps.values()], [v.get("grad_norm", math.nan) for v in steps.values()], evaluation
    )


def _largest(values: list[float], expected: list[float], at_least: float = 0.0) -> float:
    """Returns the largest difference relative to `expected` or to `at_least`; infinity for NaN."""
    difference = torch.tensor(values, dtype=torch.float64) - torch.tensor(expected, dtype=torch.float64)
    relative = difference.abs() / torch.tensor(expected, dtype=torch.float64).abs().clamp(min=at_least)
    return float(relative.nan_to_num(nan=torch.inf).max())


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: weight for file in folder.glob("*.safetensors") for name, weight in load_file(file).items()}


def _shapes(weights: dict[str, torch.Tensor]) -> set[tuple[str, torch.Size]]:
    return {(name, weight.shape) for name, weight in weights.items()}


def _distance(
    saved: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], before: dict[str, torch.Tensor]
) -> float:
    """Returns the distance of the saved weights from `expected`, divided by the distance of `expected` from `before`.

    Raises:
        MismatchError: the run saved weights of other names or shapes.
    """
    common = [saved[name] for name in saved.keys() & expected.keys()]
    # DeepSpeed also saves each copy of weights that a model shares, such as an output head tied to the embeddings.
    saved = {
        name: weight
        for name, weight in saved.items()
        if name in expected or not any(torch.equal(weight, other) for other in common)
    }
    if _shapes(saved) != _shapes(expected):
        names = sorted(dict(_shapes(saved) ^ _shapes(expected)))
        raise MismatchError(f"saved other weights: {', '.join(names[:3])}")

    def norm(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
        # AdaLoRA saves fewer ranks than it began with, so initial weights may have another shape.
        differences = (
            left[name].double() - (right[name].double() if right[name].shape == left[name].shape else 0)
            for name in left
        )
        return math.sqrt(sum(float(difference.square().sum()) for difference in differences))

    return norm(saved, expected) / norm(expected, before)
