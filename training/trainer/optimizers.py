"""The optimizer and the scheduler of a run, and steps within the backward pass. Trainer takes most optimizers by name."""

import re
from typing import Any

import torch
from peft.optimizers import create_loraplus_optimizer
from torch.optim import AdamW, Muon, Optimizer
from transformers import Trainer

from training.config.choices import Scheduler
from training.config.optimizer_name import OptimizerName
from training.config.run_config import RunConfig

_SCHEDULER_NAMES = {name: name.value for name in Scheduler} | {
    Scheduler.WSD: "warmup_stable_decay",
    Scheduler.REDUCE_ON_PLATEAU: "reduce_lr_on_plateau",
}

_LAYER = re.compile(r"\.\d+\.")  # model.layers.0.mlp...: the part of a numbered layer


def optimizer_arguments(config: RunConfig) -> dict[str, Any]:
    """Returns the optimizer's part of TrainingArguments."""
    return {
        # Any name where `optimizer_factory` makes the optimizer.
        "optim": config.optimizer.traits.transformers_name or "adamw_torch",
        "optim_args": f"momentum={config.momentum}" if config.optimizer is OptimizerName.SGD else None,
        "adam_beta1": config.adam_beta1,
        "adam_beta2": config.adam_beta2,
        "adam_epsilon": config.adam_epsilon,
        "weight_decay": config.weight_decay,
        "max_grad_norm": config.max_grad_norm,
    }


def optimizer_factory(config: RunConfig) -> tuple[Any, dict[str, Any]] | None:
    """Returns the optimizer's class and arguments as Trainer takes them; None if transformers knows it by name."""
    adam = {"betas": (config.adam_beta1, config.adam_beta2), "eps": config.adam_epsilon}
    match config.optimizer:
        case OptimizerName.ADAMW_ANYPRECISION:
            import optimi

            # Weights, moments and the Kahan compensation all have the dtype of the weights.
            return optimi.AdamW, {"lr": config.learning_rate, **adam}
        case OptimizerName.MUON:
            shared = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
            return (lambda: MuonWithAdamW), {"momentum": config.momentum, **shared, **adam}
        case known:
            assert known.traits.transformers_name, known
            return None


def loraplus(trainer: Trainer, model: torch.nn.Module, ratio: float) -> torch.optim.Optimizer:
    """Returns the trainer's optimizer, with a learning rate of B of `ratio` times that of A."""
    cls, settings = trainer.optimizer_cls_and_kwargs or trainer.get_optimizer_cls_and_kwargs(trainer.args, model)
    decay = trainer.args.weight_decay
    rates = {"loraplus_lr_ratio": ratio, "loraplus_lr_embedding": settings["lr"]}  # PEFT's default is a fixed 1e-6
    optimizer: torch.optim.Optimizer = create_loraplus_optimizer(
        model, cls, loraplus_weight_decay=decay, **rates, **settings
    )
    # ZeRO cannot partition a group without parameters.
    optimizer.param_groups = [group for group in optimizer.param_groups if group["params"]]
    return optimizer


class MuonWithAdamW(Optimizer):
    """Muon for the matrices of the hidden layers, AdamW for all other parameters, as Muon's authors recommend.

    Muon's updates are scaled to the size of AdamW's, so one learning rate fits both. Both share this optimizer's groups and
    state; schedulers and checkpoints see a single optimizer.
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
        """Called when a checkpoint is loaded, with new groups and state."""
        super().__setstate__(state)
        self._share()

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Takes one step with both optimizers."""
        loss = closure() if closure else None
        for part in self._parts:
            part.step()
        return loss


def split_parameters(model: torch.nn.Module) -> tuple[list[torch.nn.Parameter], list[torch.nn.Parameter]]:
    """Returns the trainable parameters: the matrices of hidden layers, and the others (embeddings, head, norms, biases)."""
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    matrices: list[torch.nn.Parameter] = []
    others: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            is_matrix = parameter.ndim == 2 and min(parameter.shape) > 1  # one row or column is a vector
            is_matrix = is_matrix and id(parameter) not in embeddings and _LAYER.search(name) is not None
            (matrices if is_matrix else others).append(parameter)
    return matrices, others


def optimizer_class(optimizer: Any) -> str:
    """Returns the name of the innermost optimizer class, under the wrappers of accelerate and DeepSpeed."""
    while inner := getattr(optimizer, "optimizer", None):
        optimizer = inner
    return f"{type(optimizer).__module__.partition('.')[0]}.{type(optimizer).__name__}"


def scheduler_name(config: RunConfig) -> str:
    return _SCHEDULER_NAMES[config.lr_scheduler]


def scheduler_arguments(config: RunConfig, total_steps: int | None = None) -> dict[str, Any]:
    """Returns the arguments of the run's scheduler; some depend on the run's `total_steps`."""
    match config.lr_scheduler:
        case Scheduler.COSINE_WITH_MIN_LR:
            return {"min_lr_rate": config.min_lr_ratio}
        case Scheduler.COSINE_WITH_RESTARTS:
            return {"num_cycles": config.lr_cycles}
        case Scheduler.REDUCE_ON_PLATEAU:
            smallest = config.learning_rate * config.min_lr_ratio
            # Below 0, as a negated reward is, any loss is lower than torch's default: a share of the lowest one.
            signed = config.task.traits.rewards_samples or config.task.traits.is_preference
            mode = {"threshold_mode": "abs"} if signed else {}
            return {"factor": config.plateau_factor, "patience": config.plateau_patience, "min_lr": smallest} | mode
        case Scheduler.WSD if total_steps:
            decay = max(1, round(total_steps * config.decay_share))
            return {"num_decay_steps": decay, "min_lr_ratio": config.min_lr_ratio}
    return {}


class StepInBackward:
    """Takes the steps of `optimizer` within backward passes.

    `discards`: a probe is running, whose gradients count as zeros. `squares` is the sum of the squared gradients of a pass, of
    shape (), from which `take_norm` computes the norm of the whole gradient.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer, self.discards = optimizer, False
        self._squares: torch.Tensor | None = None
        self._step_of = type(optimizer).step  # a scheduler counts calls of the instance's
        self._handles = [
            weight.register_post_accumulate_grad_hook(self._step)
            for group in optimizer.param_groups
            for weight in group["params"]
        ]

    def _step(self, weight: torch.Tensor) -> None:
        gradient = weight.grad
        assert gradient is not None
        if self.discards:
            gradient.zero_()
        square = torch.linalg.vector_norm(gradient, dtype=torch.float32).square()
        self._squares = square if self._squares is None else self._squares + square
        self._step_of(self._optimizer)  # all other weights have no gradient, which every optimizer skips
        weight.grad = None

    def take_norm(self) -> torch.Tensor | None:
        """Returns the norm of the last pass's gradient, of shape (), and begins anew; None without a gradient."""
        squares, self._squares = self._squares, None
        return None if squares is None else squares.sqrt()

    def remove(self) -> None:
        """Leaves the steps to the caller again."""
        for handle in self._handles:
            handle.remove()
