"""What holds for a family: its counts, the adapter's, and whether its rows may be concatenated."""

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.families.inputs import VOCABULARY, Family, on_meta, small

ROWS = (3, 17, 9, 26)
TOLERANCE = 1e-3
"""Largest relative difference of two losses that count as equal, in fp32."""

LARGEST = 20_000_000
"""Parameters of the largest model whose losses are computed."""


@dataclass(frozen=True)
class Row:
    """A family: the parameters of its class and of the shape that Lathe reads, those of a LoRA by PEFT and by the shape, how its
    layers mix tokens, by what they are counted, and what the formulas do not know.

    `flat` is why rows are not concatenated (empty: they are), `losses` are those of the same rows flat (None: refused), padded
    and one by one. `problem` is why transformers builds no model of this family; then nothing else is known.
    """

    family: Family
    parameters: int = 0
    counted: int = 0
    adapter: int = 0
    adapter_counted: int = 0
    mixers: tuple[str, ...] = ()
    experts: bool = False
    by: str = ""
    unknown: str = ""
    flat: str = ""
    losses: tuple[float | None, float, float] | None = None
    problem: str = ""

    @property
    def exact(self) -> bool:
        return not self.problem and self.parameters == self.counted and self.adapter == self.adapter_counted

    @property
    def equal(self) -> bool:
        """True if all its losses are equal."""
        if self.losses is None:
            return True
        known = [loss for loss in self.losses if loss is not None]
        return max(known) - min(known) <= TOLERANCE * max(abs(loss) for loss in known)


def measured(family: Family, *, trains: bool = True) -> Row:
    """Returns what holds for a family. With `trains` a causal model also computes its losses."""
    try:
        config = small(family.model_type)
        model = on_meta(config, family.kind)
    except Exception as first:
        try:
            from transformers import CONFIG_MAPPING

            config = CONFIG_MAPPING[family.model_type]()
            model, trains = on_meta(config, family.kind), False
        except Exception:
            return Row(family, problem=f"{type(first).__name__}: {first}".splitlines()[0].strip(": ")[:160])
    from training.batches.layout import why_not_flat

    counts = counted(family, model)
    if family.kind != "causal":
        return Row(family, **counts, flat="padded: only causal language models take flat batches")
    if not trains or counts["parameters"] > LARGEST:
        return Row(family, **counts, flat=why_not_flat(model), losses=None)
    flat, losses = packing(config)
    return Row(family, **counts, flat=flat, losses=losses)


def counted(family: Family, model: Any) -> dict[str, Any]:
    """Returns the counts of a model on the meta device; it gets an adapter."""
    from training.config.fields import parse
    from training.config.task import Task
    from training.forecast.formula import trainable
    from training.model_info.config_json import ModelError
    from training.model_info.families import shape_of
    from training.models.adapters import add_adapter
    from training.models.layers import shape_of_model, with_adapter
    from training.models.loading import peft_task

    shape = with_adapter(shape_of_model(model), copy.deepcopy(model), Task(family.task))
    total = sum(parameter.numel() for parameter in model.parameters())
    try:
        formula = shape_of(model.config.to_dict()) if family.kind != "classification" else None
    except ModelError:
        formula = None
    by = "formula" if formula and formula.parameters == total else "class"
    lora = {"method": "lora", "lora_r": 4, "target_modules": "all-linear", "task": family.task}
    settings = parse({"model": "m", "data": "d"} | lora)
    expected = trainable.count(settings, shape)[0]
    try:
        adapted = add_adapter(model, settings, peft_task(settings.task))
        adapter = sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)
    except Exception:  # PEFT has no adapter for this class
        adapter = expected
    return {
        "parameters": total, "counted": shape.parameters, "adapter": adapter, "adapter_counted": expected, "by": by,
        "mixers": tuple(sorted(mixer.value for mixer in shape.mixers)), "unknown": shape.unknown,
        "experts": any(stack.experts for stack in shape.stacks),
    }  # fmt: skip


def packing(config: Any) -> tuple[str, tuple[float | None, float, float] | None]:
    """Returns why rows are not concatenated (empty: they are), and the losses of a random model: flat, padded and one by one."""
    import torch

    from training.batches.layout import choose_layout, cross_row_influence, why_not_flat
    from training.config.fields import parse

    model = random_model(config)
    reason = why_not_flat(model)
    run = parse({"model": "m", "data": "d"})
    try:
        alone = [float(_loss(model, [row])) * _labels(row) for row in rows()]
        single = sum(alone) / sum(_labels(row) for row in rows())
        padded = float(_loss(model, rows()))
        if reason:
            return reason, (None, padded, single)
        layout = choose_layout(run, model, 0)
        if cross_row_influence(model, VOCABULARY, torch.device("cpu"), "fp32") >= 1:
            return "it does not keep the rows of a batch without padding apart", (None, padded, single)
        with torch.no_grad():
            flat = float(model(**layout.collator(rows()), use_cache=False).loss)
        return "", (flat, padded, single)
    except Exception as error:
        return reason or f"cannot be tried: {type(error).__name__}: {error}".splitlines()[0][:120], None


def random_model(config: Any) -> Any:
    """Returns a model with random weights that are large enough for tokens to influence each other."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.15)
    return model.eval()


def rows() -> list[dict[str, Any]]:
    """Returns rows of different lengths; the first third of each has no loss."""
    generator = np.random.default_rng(0)
    tokens = [generator.integers(3, VOCABULARY, length).astype(np.int32) for length in ROWS]
    return [{"input_ids": row, "labels": np.where(np.arange(len(row)) < len(row) // 3, -100, row)} for row in tokens]


def _labels(row: dict[str, Any]) -> int:
    return int((row["labels"][1:] != -100).sum())


def _loss(model: Any, batch: list[dict[str, Any]]) -> Any:
    """Returns the mean loss of the tokens of a padded batch."""
    import torch

    from training.batches.collators import Collator
    from training.trainer.evaluation import token_loss

    inputs = Collator(0)(batch)
    with torch.no_grad():
        logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], use_cache=False).logits
    return token_loss(logits, inputs, shifted=True)
