"""What a run of benchmarks/reference.py left in its folder, and how far it is from its reference."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer
from transformers.utils import logging

from benchmarks.reference_cells import STEPS, SUBJECTS, TARGETS, Cell
from benchmarks.reference_loop import LEARNERS, Curve, Learner, Step, load, run
from benchmarks.reference_ranks import INITIAL, batches_file
from benchmarks.reference_rows import classes_of, read, rows_of

logging.disable_progress_bar()
logging.set_verbosity_error()
torch.set_num_threads(1)  # tensors are tiny, and the ranks have the other cores
_KINDS = {
    "seq2seq": ("AutoModelForSeq2SeqLM", "SEQ_2_SEQ_LM"),
    "classification": ("AutoModelForSequenceClassification", "SEQ_CLS"),
    "reward": ("AutoModelForSequenceClassification", "SEQ_CLS"),
}


class MismatchError(Exception):
    """A run that cannot be compared: it trained on other rows, or left something else behind."""


def differences(cell: Cell, folder: Path) -> dict[str, float]:
    """The largest relative differences of loss, gradient norm, evaluation loss and saved weights.

    Raises:
        MismatchError: as its text says.
    """
    learner, tokens = _learner(cell, folder)
    steps = _steps(folder, cell, tokens)
    before, after = folder / "reference-before", folder / "reference-after"
    learner.model.save_pretrained(before)
    config = cell.config
    wanted = run(learner, steps, config["optimizer"], config["learning_rate"])
    learner.model.save_pretrained(after)
    found = _curve(folder)
    if len(found.losses) != STEPS or len(found.gradients) != STEPS:
        raise MismatchError(
            f"reported {len(found.losses)} losses and {len(found.gradients)} gradient norms of {STEPS} steps"
        )
    saved = folder / ("model" if cell.method == "full" else "adapter")
    return {
        "loss": _largest(found.losses, wanted.losses),
        "gradient": _largest(found.gradients, wanted.gradients),
        "evaluation": _largest([found.evaluation], [wanted.evaluation]),
        "weights": _distance(_weights(saved), _weights(after), _weights(before)),
    }


def _learner(cell: Cell, folder: Path) -> tuple[Learner, list[list[int]]]:
    """The reference's model with its data, and the tokens of every row it may train on."""
    config, initial = cell.config, folder / INITIAL
    task, model, limit = config["task"], Path(config["model"]), config["max_length"]
    kind, peft_task = _KINDS.get(task, ("AutoModelForCausalLM", "CAUSAL_LM"))
    data, held_out = Path(config["data"]), Path(config["validation_data"])
    adapter = _adapter(cell, peft_task)
    if task in ("dpo", "kto", "orpo", "reward"):
        from benchmarks.reference_trl import PreferenceLearner

        settings = {"output_dir": str(folder / "trl"), "max_length": limit}
        settings |= {} if task == "reward" else {"beta": config.get("beta", 0.1)}
        begun = load(kind, model, initial, adapter, **({"num_labels": 1} if task == "reward" else {}))
        places = {"micro": cell.split[0], "ranks": cell.ranks}
        learner = PreferenceLearner(task, begun, model, read(data), read(held_out), settings, **places)
        return learner, learner.tokens()
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows, others = (rows_of(task, file, tokenizer, limit) for file in (data, held_out))
    head = {"num_labels": len(classes_of(read(data)))} if task == "classification" else {}
    special = cell.method if cell.method == "adalora" else cell.subject.split()[0]
    make = LEARNERS.get(special, LEARNERS[task])
    return make(load(kind, model, initial, adapter, **head), rows, others), [row.ids for row in rows]


def _adapter(cell: Cell, task: str) -> Any:
    from peft import AdaLoraConfig, LoraConfig

    targets = TARGETS[SUBJECTS[cell.subject].model].split(", ")
    shared: dict[str, Any] = {"task_type": task, "target_modules": targets}
    match cell.method:
        case "lora":
            return LoraConfig(**shared, r=cell.config["lora_r"], lora_alpha=cell.config["lora_alpha"])
        case "adalora":
            options = dict(option.split("=") for option in cell.config["method_options"].split(", "))
            return AdaLoraConfig(
                **shared, total_step=STEPS, **{name: json.loads(value) for name, value in options.items()}
            )
    return None


def _steps(folder: Path, cell: Cell, tokens: Sequence[list[int]]) -> list[Step]:
    """The rows of every step as the run took them.

    Raises:
        MismatchError: a row that is none of the data's, or one that came again before all had come.
    """
    places = {tuple(row): place for place, row in enumerate(tokens)}
    if len(places) < len(tokens):
        raise MismatchError("has equal rows, which cannot be told apart")
    paired = cell.config["task"] in ("dpo", "reward")
    parts = [_batches(batches_file(folder, rank), places, paired=paired) for rank in range(cell.ranks)]
    steps = [[list(micro) for micro in zip(*(part[step] for part in parts), strict=True)] for step in sorted(parts[0])]
    _empty_filled(steps, len(tokens))
    return steps


def _empty_filled(steps: list[Step], rows: int) -> None:
    """Takes out the batches of ranks for which an epoch had no rows left: they must fill them with rows that count nothing.

    Raises:
        MismatchError: a row came again before all had come.
    """
    seen: set[int] = set()
    for number, micro in ((number, micro) for step in steps for number, micro in enumerate(step)):
        if len(seen) == rows and number == 0:
            seen = set()  # an epoch begins with a step
        for rank, batch in enumerate(micro):
            if len(seen) == rows:
                micro[rank] = []
            elif len(seen | set(batch)) < len(seen) + len(batch):
                raise MismatchError(f"trained on a row again when {len(seen)} of {rows} rows had trained")
            seen |= set(batch)


def _batches(file: Path, places: dict[tuple[int, ...], int], *, paired: bool) -> dict[int, list[list[int]]]:
    """The batches of a rank by step. In batches of pairs the chosen answers come first, all before the rejected ones."""
    steps: dict[int, list[list[int]]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        batch = json.loads(line)
        rows = batch["rows"][: len(batch["rows"]) // 2] if paired else batch["rows"]
        if not all(tuple(row) in places for row in rows):
            raise MismatchError(f"trained at step {batch['step']} on a row that has other tokens than the reference's")
        steps.setdefault(batch["step"], []).append([places[tuple(row)] for row in rows])
    return steps


def _curve(folder: Path) -> Curve:
    """What the run reported."""
    curve = Curve()
    for line in (folder / "events.jsonl").read_text(encoding="utf-8").splitlines():
        values = json.loads(line).get("values") or {}
        if "loss" in values:
            curve.losses.append(values["loss"])
            curve.gradients.append(values["grad_norm"])
        curve.evaluation = values.get("eval_loss", curve.evaluation)
    return curve


def _largest(found: list[float], wanted: list[float]) -> float:
    """The largest difference, relative to what is wanted; infinite where one is no number."""
    apart = torch.tensor(found, dtype=torch.float64) - torch.tensor(wanted, dtype=torch.float64)
    relative = apart.abs() / torch.tensor(wanted, dtype=torch.float64).abs()
    return float(relative.nan_to_num(nan=torch.inf).max())


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: weight for file in folder.glob("*.safetensors") for name, weight in load_file(file).items()}


def _shapes(weights: dict[str, torch.Tensor]) -> set[tuple[str, torch.Size]]:
    return {(name, weight.shape) for name, weight in weights.items()}


def _distance(
    found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], before: dict[str, torch.Tensor]
) -> float:
    """How far the saved weights are from those wanted, in units of how far training moved those.

    Raises:
        MismatchError: other weights were saved.
    """
    kept = [found[name] for name in found.keys() & wanted.keys()]
    # DeepSpeed also saves each copy of weights that a model shares, such as an output head tied to the embeddings.
    found = {
        name: weight
        for name, weight in found.items()
        if name in wanted or not any(torch.equal(weight, other) for other in kept)
    }
    if _shapes(found) != _shapes(wanted):
        raise MismatchError(f"saved other weights: {', '.join(sorted(dict(_shapes(found) ^ _shapes(wanted)))[:3])}")

    def norm(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
        # AdaLoRA saves fewer ranks than it began with: what they began as is not there to be compared then.
        apart = (
            one[name].double() - (other[name].double() if other[name].shape == one[name].shape else 0) for name in one
        )
        return sum(float(difference.square().sum()) for difference in apart) ** 0.5

    return norm(found, wanted) / norm(wanted, before)
