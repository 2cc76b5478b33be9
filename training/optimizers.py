"""RunConfig.optimizer -> the optimizer: most are known to transformers by a name, two are given as a class."""

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import AdamW, Muon, Optimizer

from training.config import OptimizerName, RunConfig

# Fused AdamW is one kernel on CUDA, and on CPU too: a quarter of the time of the loop over tensors.
_NAMES = {
    OptimizerName.ADAMW: "adamw_torch_fused",
    OptimizerName.ADAMW_8BIT: "adamw_8bit",
    OptimizerName.PAGED_ADAMW_8BIT: "paged_adamw_8bit",
    OptimizerName.PAGED_ADAMW_32BIT: "paged_adamw_32bit",
    OptimizerName.ADAMW_TORCHAO_8BIT: "adamw_torch_8bit",
    OptimizerName.ADAMW_TORCHAO_4BIT: "adamw_torch_4bit",
    OptimizerName.ADAFACTOR: "adafactor",
    OptimizerName.LION: "lion_32bit",
    OptimizerName.LION_8BIT: "lion_8bit",
    OptimizerName.SGD: "sgd",
}
_LAYER = re.compile(r"\.\d+\.")  # model.layers.0.mlp...: the part of a numbered layer


def optimizer_arguments(config: RunConfig) -> dict[str, Any]:
    """What TrainingArguments take of the optimizer."""
    return {
        "optim": _NAMES.get(config.optimizer, "adamw_torch"),
        "optim_args": f"momentum={config.momentum}" if config.optimizer is OptimizerName.SGD else None,
        "adam_beta1": config.adam_beta1,
        "adam_beta2": config.adam_beta2,
        "adam_epsilon": config.adam_epsilon,
        "weight_decay": config.weight_decay,
        "max_grad_norm": config.max_grad_norm,
    }


def optimizer_factory(config: RunConfig) -> tuple[Any, dict[str, Any]] | None:
    """What makes the optimizer, and with what, as Trainer takes it; None where transformers knows it by its name."""
    adam = {"betas": (config.adam_beta1, config.adam_beta2), "eps": config.adam_epsilon}
    match config.optimizer:
        case OptimizerName.ADAMW_ANYPRECISION:
            import optimi

            # Weights, moments and the Kahan sum of what rounding lost are all in the weights' own format.
            return optimi.AdamW, {"lr": config.learning_rate, **adam}
        case OptimizerName.MUON:
            shared = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
            return (lambda: MuonWithAdamW), {"momentum": config.momentum, **shared, **adam}
    return None


class MuonWithAdamW(Optimizer):
    """Muon for the matrices of the hidden layers, AdamW for all else, as Muon's authors use it.

    Muon's step is scaled to the size of AdamW's, so that one learning rate serves both. Both work on this optimizer's own
    groups and state: schedulers and checkpoints see one optimizer.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        lr: float,
        weight_decay: float,
        momentum: float,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        matrices, others = split_parameters(model)
        self._parts: list[Optimizer] = []
        if matrices:
            muon = Muon(matrices, lr=lr, weight_decay=weight_decay, momentum=momentum, adjust_lr_fn="match_rms_adamw")
            self._parts.append(muon)
        if others:
            self._parts.append(AdamW(others, lr=lr, betas=betas, eps=eps, weight_decay=0.0, fused=True))
        super().__init__([group for part in self._parts for group in part.param_groups], {})
        self._share()

    def _share(self) -> None:
        groups = iter(self.param_groups)
        for part in self._parts:
            part.param_groups = [next(groups) for _ in part.param_groups]
            part.state = self.state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called when a checkpoint is loaded, with new groups and state in it."""
        super().__setstate__(state)
        self._share()

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step of both."""
        loss = closure() if closure else None
        for part in self._parts:
            part.step()
        return loss


def split_parameters(model: torch.nn.Module) -> tuple[list[torch.nn.Parameter], list[torch.nn.Parameter]]:
    """The trained parameters: the matrices of the hidden layers, and the others (embeddings, head, norms, biases)."""
    tables = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    trained: Iterable[tuple[str, torch.nn.Parameter]] = (
        (name, one) for name, one in model.named_parameters() if one.requires_grad
    )
    matrices: list[torch.nn.Parameter] = []
    others: list[torch.nn.Parameter] = []
    for name, one in trained:
        is_matrix = one.ndim == 2 and id(one) not in tables and _LAYER.search(name)
        (matrices if is_matrix else others).append(one)
    return matrices, others


def optimizer_class(optimizer: Any) -> str:
    """The class that really steps, beneath what accelerate and DeepSpeed wrap around it."""
    while inner := getattr(optimizer, "optimizer", None):
        optimizer = inner
    return f"{type(optimizer).__module__.partition('.')[0]}.{type(optimizer).__name__}"
