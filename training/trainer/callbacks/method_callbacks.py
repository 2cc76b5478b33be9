"""What single methods need from the trainer: LoRA+ two learning rates, AdaLoRA `update_and_allocate` after each step."""

from typing import Any

import torch
from peft.optimizers import create_loraplus_optimizer
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from training.config.choices import Method
from training.config.run_config import RunConfig
from training.errors import UserError


def callbacks(config: RunConfig) -> list[TrainerCallback]:
    """Returns the callbacks of the run's method."""
    return [AdaLoraCallback()] if config.method is Method.ADALORA else []


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


class AdaLoraCallback(TrainerCallback):  # type: ignore[misc]
    """Sets AdaLoRA's total steps, and reallocates its ranks after every optimizer step."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **named: Any
    ) -> None:
        schedule = named["model"].peft_config["default"]
        if schedule.tinit >= state.max_steps - schedule.tfinal:
            given = f"tinit={schedule.tinit}, tfinal={schedule.tfinal}"
            fix = f"Keep tinit + tfinal below the run's {state.max_steps} steps."
            raise UserError("method_options", given, "leave AdaLoRA no step to reallocate its ranks.", fix)
        schedule.total_step = state.max_steps

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **named: Any
    ) -> None:
        named["model"].base_model.update_and_allocate(state.global_step + 1)
