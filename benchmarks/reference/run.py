"""Reads a run of benchmarks/reference/command.py from its folder, and compares it with its reference."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer
from transformers.utils import logging

from benchmarks.reference.cells import STEPS, Cell
from benchmarks.reference.plain_loop import LEARNERS, Curve, Learner, Step, load, reloaded, run
from benchmarks.reference.ranks import INITIAL, batches_file
from benchmarks.reference.rows import classes_of, read, rows_of

logging.disable_progress_bar()
logging.set_verbosity_error()
torch.set_num_threads(1)  # tensors are tiny, and the ranks use the other cores
_KINDS = {
    "seq2seq": ("AutoModelForSeq2SeqLM", "SEQ_2_SEQ_LM"),
    "classification": ("AutoModelForSequenceClassification", "SEQ_CLS"),
    "reward": ("AutoModelForSequenceClassification", "SEQ_CLS"),
}


FILLER = 2  # tokens of a row that fills the last batch of an epoch under sequence parallelism


class MismatchError(Exception):
    """A run that cannot be compared: it trained on other rows, or saved other weights."""


def differences(cell: Cell, folder: Path) -> dict[str, float]:
    """Returns the largest relative differences of loss, gradient norm, evaluation loss, saved weights and their evaluation.

    Raises:
        MismatchError: the run cannot be compared.
    """
    learner, tokens = _learner(cell, folder)
    steps = _steps(folder, cell, tokens)
    before, after = folder / "reference-before", folder / "reference-after"
    learner.model.save_pretrained(before)
    expected = run(learner, steps, cell.config)
    learner.model.save_pretrained(after)
    reported = _curve(folder)
    if len(reported.losses) != STEPS or len(reported.gradients) != STEPS:
        raise MismatchError(
            f"reported {len(reported.losses)} losses and {len(reported.gradients)} gradient norms of {STEPS} steps"
        )
    saved = folder / ("model" if cell.method == "full" else "adapter")
    return {
        "loss": _largest(reported.losses, expected.losses),
        "gradient": _largest(reported.gradients, expected.gradients),
        "evaluation": _largest([reported.evaluation], [expected.evaluation]),
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
    special = cell.method if cell.method == "adalora" else cell.subject.split()[0]
    make = LEARNERS.get(special, LEARNERS[task])
    return make(load(kind, model, initial, adapter, **_head(cell)), rows, others), [row.ids for row in rows]


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
        case "lora":
            own = {name: cell.config[name] for name in ("use_dora", "use_rslora") if name in cell.config}
            return LoraConfig(**shared, **own, r=cell.config["lora_r"], lora_alpha=cell.config["lora_alpha"])
        case "adalora":
            options = dict(option.split("=") for option in cell.config["method_options"].split(", "))
            return AdaLoraConfig(
                **shared, total_step=STEPS, **{name: json.loads(value) for name, value in options.items()}
            )
    return None


def _steps(folder: Path, cell: Cell, tokens: Sequence[list[int]]) -> list[Step]:
    """Returns the rows of every step of the run.

    Raises:
        MismatchError: a row is not in the data, or trained again before all rows had trained.
    """
    places = {tuple(row): place for place, row in enumerate(tokens)}
    if len(places) < len(tokens):
        raise MismatchError("has equal rows, which cannot be told apart")
    paired = cell.config["task"] in ("dpo", "reward")
    shares = cell.config.get("sequence_parallel_size", 1)
    groups = [range(first, first + shares) for first in range(0, cell.ranks, shares)]
    parts = [_batches([batches_file(folder, rank) for rank in group], places, paired=paired) for group in groups]
    steps = [[list(micro) for micro in zip(*(part[step] for part in parts), strict=True)] for step in sorted(parts[0])]
    _empty_filled(steps, len(tokens))
    return steps


def _empty_filled(steps: list[Step], rows: int) -> None:
    """Empties the batches of ranks for which an epoch had no rows left; their filler rows must not count.

    Raises:
        MismatchError: a row trained again before all rows had trained.
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


def _batches(files: list[Path], places: dict[tuple[int, ...], int], *, paired: bool) -> dict[int, list[list[int]]]:
    """Returns the batches by step of the ranks that share sequences, each of which recorded its part of every row.

    In batches of pairs all chosen answers come before the rejected ones.
    """
    steps: dict[int, list[list[int]]] = {}
    for records in zip(*map(_last_attempts, files), strict=True):
        whole = [
            [token for part in parts for token in part] for parts in zip(*(r["rows"] for r in records), strict=True)
        ]
        rows = whole[: len(whole) // 2] if paired else whole
        if len(files) > 1:
            rows = [row for row in rows if len(row) > FILLER]
        if not all(tuple(row) in places for row in rows):
            step = records[0]["step"]
            raise MismatchError(f"trained at step {step} on a row that has other tokens than the reference's")
        steps.setdefault(records[0]["step"], []).append([places[tuple(row)] for row in rows])
    return steps


def _last_attempts(file: Path) -> list[dict[str, Any]]:
    """Returns the batches of each step as the last process recorded them that took it."""
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    last = {record["step"]: record["process"] for record in records}
    return [record for record in records if last[record["step"]] == record["process"]]


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


def _largest(values: list[float], expected: list[float]) -> float:
    """Returns the largest difference relative to `expected`; infinity for NaN."""
    difference = torch.tensor(values, dtype=torch.float64) - torch.tensor(expected, dtype=torch.float64)
    relative = difference.abs() / torch.tensor(expected, dtype=torch.float64).abs()
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
