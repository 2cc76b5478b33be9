"""trl's losses as methods of objects that do not train: they have what a loss reads, and no constructor of trl has run.

trl divides losses by accumulation and ranks, and adds a router's loss to them. Here a loss is a mean over its micro batch alone,
and a router's loss is a term of its own; the trainer weighs both.
"""

import math
from collections import defaultdict
from contextlib import AbstractContextManager
from dataclasses import MISSING, fields
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from transformers import TrainingArguments
from trl.models.utils import prepare_deepspeed, prepare_fsdp
from trl.trainer.utils import add_fused_lm_head, disable_dropout_in_model, use_adapter

from training.config.run_config import RunConfig
from training.ranks.distributed import several_ranks
from training.trainer.loss_terms import BATCHES, LossTerm
from training.trainer.reference import add_noise_with_gradient_only, begins_as_reference, check_reference

_UNCHANGED = (True, "gaussian")  # values of init_lora_weights with which a new adapter changes nothing


class TrlLoss:
    """A loss of trl with the model and the reference for it, and what it measures.

    `of_trl` is the object whose methods compute it, of trl's class `trainer` with the settings `values`; others have the defaults
    of trl's class `config`. `head` names what the fused head returns for each token; without names the model keeps its own head.
    """

    def __init__(
        self, config: RunConfig, model: Any, tokenizer: Any, reference: Any,
        trainer: type[Any], of_trainer: type[Any], *, head: tuple[str, ...] = (), temperature: float = 1.0, **values: Any,
    ) -> None:  # fmt: skip
        self.config, self.model, self.reference = config, model, reference
        self.router = router_weight(model)
        self._metrics = {mode: defaultdict[str, list[float]](list) for mode in ("train", "eval")}
        self._prepare(tokenizer, head, temperature)
        self.of_trl: Any = object.__new__(trainer)
        defaults = _defaults(of_trainer)
        passes: dict[str, Any] = {"report_to": [], "gradient_checkpointing_kwargs": {"use_reentrant": False}}
        self._args = SimpleNamespace(**defaults | passes | values)
        vars(self.of_trl).update(
            defaults | values,
            args=self._args, _metrics=self._metrics, _total_train_tokens=0, _tp_size=1, current_gradient_accumulation_steps=1,
            precompute_ref_logps=False, aux_loss_enabled=self.router != 0, router_aux_loss_coef=0.0, aux_loss_coef=0.0,
        )  # fmt: skip

    def _prepare(self, tokenizer: Any, head: tuple[str, ...], temperature: float) -> None:
        """Prepares the models as trl's constructors do."""
        if tokenizer is not None:  # else it is a simulated step
            self._set_padding(tokenizer.pad_token_id)
            if self.config.method.adapts and self.config.recomputes:
                self.model.enable_input_require_grads()
        models = [model for model in (self.model, self.reference) if model is not None]
        if self.config.task.traits.is_preference:
            for model in models:
                disable_dropout_in_model(model)
        if self.config.task.traits.has_reference and self.reference is None and tokenizer is not None:
            _copy_adapter(self.model)
        if head:
            for model in models:
                base = model.get_base_model() if hasattr(model, "get_base_model") else model
                add_fused_lm_head(base, temperature=temperature, outputs=head if model is self.model else head[:1])

    def _set_padding(self, token: int) -> None:
        self.model.config.get_text_config().pad_token_id = token
        if self.config.task.traits.generates:
            self.model.generation_config.pad_token_id = token

    def begin(self, trainer: Any) -> None:
        """Divides the reference among the ranks as the model will be."""
        if self.reference is not None:
            self.reference = _prepared(self.reference, trainer)

    def placed(self, trainer: Any) -> None:
        """Takes the model as it was wrapped, and keeps the noise of NEFTune out of the reference."""
        add_noise_with_gradient_only(trainer.unwrapped)
        self._args.gradient_checkpointing_kwargs = trainer.args.gradient_checkpointing_kwargs
        self.connect(trainer.model, _ranks(trainer.accelerator))

    def connect(self, model: Any, ranks: SimpleNamespace) -> None:
        """Gives trl's loss its model and what it uses of accelerate."""
        vars(self.of_trl).update(model=model, ref_model=self.reference, accelerator=ranks)

    def check_reference(self, trainer: Any) -> None:
        """Checks that a new adapter does not change the model; every rank calls it. Raises UserError if it does."""
        if begins_as_reference(self.config):
            check_reference(
                self.config, trainer.model, lambda: self._as_reference(trainer), trainer.context.plan["precision"]
            )

    def _as_reference(self, trainer: Any) -> AbstractContextManager[Any]:
        """The context in which trl computes the reference of an adapter."""
        model = trainer.unwrapped
        context: AbstractContextManager[Any] = use_adapter(model, "ref" if "ref" in model.peft_config else None)
        return context

    def of_router(self, loss: torch.Tensor) -> LossTerm:
        """The router's loss of a micro batch as a term."""
        return LossTerm(loss, BATCHES, self.router)

    def note(self, values: dict[str, float], mode: str = "train") -> None:
        """Adds to what trl's loss measures."""
        for name, value in values.items():
            self._metrics[mode][name].append(value)

    def measured(self, *, trains: bool) -> dict[str, float | None]:
        """Returns the means over micro batches since the last report, by name; None without a number."""
        metrics, prefix = self._metrics["train" if trains else "eval"], "" if trains else "eval_"
        known = {name: [value for value in values if not math.isnan(value)] for name, values in metrics.items()}
        metrics.clear()
        return {f"{prefix}{name}": sum(values) / len(values) if values else None for name, values in known.items()}

    def forget(self) -> None:
        """Forgets what was measured."""
        for metrics in self._metrics.values():
            metrics.clear()
        self.of_trl._total_train_tokens = 0


class LastOutputs:
    """Calls a model for trl's loss, and keeps its last outputs."""

    last: Any

    def __init__(self, model: Any) -> None:
        self._model = model

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.last = self._model(*arguments, **named)
        return self.last


def router_weight(model: Any) -> float:
    """Returns the weight of the loss with which a model balances its experts; 0 if it returns none."""
    text = model.config.get_text_config()
    return float(getattr(text, "router_aux_loss_coef", None) or 0.0) if hasattr(text, "output_router_logits") else 0.0


def gather_rows(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """Concatenates the tensors of all ranks in their first dimension, whose size may differ between ranks.

    accelerate's `gather_for_metrics` needs equal sizes, which the batches at the end of an epoch do not have.
    """
    if not several_ranks():
        return tensor
    rows = tensor.detach().reshape(1) if tensor.ndim == 0 else tensor.detach()
    sizes = [torch.zeros(1, dtype=torch.long, device=rows.device) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(rows)], device=rows.device))
    counts = [int(size) for size in sizes]
    padded = rows.new_zeros((max(counts), *rows.shape[1:]))
    padded[: len(rows)] = rows
    gathered = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(gathered, padded)
    return torch.cat([part[:count] for part, count in zip(gathered, counts, strict=True)])


def _ranks(accelerator: Any) -> SimpleNamespace:
    """What trl's losses use of accelerate: one process, since their loss is that of a micro batch; measures come from all."""
    return SimpleNamespace(
        device=accelerator.device, num_processes=1, is_main_process=False, gather=gather_rows, gather_for_metrics=gather_rows,
        unwrap_model=accelerator.unwrap_model, autocast=accelerator.autocast, reduce=accelerator.reduce,
    )  # fmt: skip


def _defaults(config: type[Any]) -> dict[str, Any]:
    """The defaults of a loss: those of trl's settings that transformers does not have."""
    common = {one.name for one in fields(TrainingArguments)}
    own = [one for one in fields(config) if one.name not in common]
    made = {one.name: one.default_factory() for one in own if one.default_factory is not MISSING}
    return {one.name: one.default for one in own if one.default is not MISSING} | made


def _copy_adapter(model: Any) -> None:
    """Adds a copy of the adapter as the reference. One whose initialization changes nothing needs none: the base model is it."""
    adapters = getattr(model, "peft_config", {})
    if "default" not in adapters or getattr(adapters["default"], "init_lora_weights", True) in _UNCHANGED:
        return
    model.add_adapter("ref", adapters["default"])
    for name, parameter in list(model.named_parameters()):
        if ".default." in name:
            model.get_parameter(name.replace(".default.", ".ref.")).data.copy_(parameter.data)


def _prepared(reference: Any, trainer: Any) -> Any:
    if trainer.is_deepspeed_enabled:
        return prepare_deepspeed(reference, trainer.accelerator)
    if trainer.is_fsdp_enabled:
        return prepare_fsdp(reference, trainer.accelerator)
    return trainer.accelerator.prepare_model(reference, evaluation_mode=True)
