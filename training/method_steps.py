"""What a method asks of the trainer: LoRA+ an optimizer with two learning rates, AdaLoRA a word after every step."""

from typing import Any

import torch
from peft.optimizers import create_loraplus_optimizer
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from training.config import Method, RunConfig
from training.failure import UserError


def callbacks(config: RunConfig) -> list[TrainerCallback]:
    """What is called between the steps of the run's method."""
    return [AdaLoraSteps()] if config.method is Method.ADALORA else []


def loraplus(trainer: Trainer, model: torch.nn.Module, ratio: float) -> torch.optim.Optimizer:
    """The trainer's optimizer, with B's learning rate at `ratio` times A's."""
    cls, settings = trainer.optimizer_cls_and_kwargs or trainer.get_optimizer_cls_and_kwargs(trainer.args, model)
    decay = trainer.args.weight_decay
    made: Any = create_loraplus_optimizer(model, cls, loraplus_lr_ratio=ratio, loraplus_weight_decay=decay, **settings)
    # ZeRO cannot partition a group without parameters.
    made.param_groups = [group for group in made.param_groups if group["params"]]
    optimizer: torch.optim.Optimizer = made
    return optimizer


class AdaLoraSteps(TrainerCallback):  # type: ignore[misc]
    """Tells AdaLoRA how long the run is, and has it move its ranks after every optimizer step."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **named: Any
    ) -> None:
        schedule = named["model"].peft_config["default"]
        if schedule.tinit >= state.max_steps - schedule.tfinal:
            given = f"tinit={schedule.tinit}, tfinal={schedule.tfinal}"
            fix = f"Keep tinit + tfinal below the run's {state.max_steps} steps."
            raise UserError("method_options", given, "leave AdaLoRA no step to move its ranks in.", fix)
        schedule.total_step = state.max_steps

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **named: Any
    ) -> None:
        named["model"].base_model.update_and_allocate(state.global_step + 1)
