"""What a method asks of the trainer: LoRA+ an optimizer with two learning rates, AdaLoRA a word after every step."""

from typing import Any

from peft.optimizers import create_loraplus_optimizer
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from training.config import Method, RunConfig
from training.failure import UserError


def suit(trainer: Trainer, config: RunConfig) -> None:
    """Gives the trainer what the run's method asks for. Before training begins."""
    if config.method is Method.ADALORA:
        trainer.add_callback(AdaLoraSteps())
    if config.method.is_lora and config.loraplus_lr_ratio:
        trainer.optimizer = _loraplus(trainer, config.loraplus_lr_ratio)


def _loraplus(trainer: Trainer, ratio: float) -> Any:
    """The optimizer that the arguments name, with B's learning rate at `ratio` times A's."""
    cls, settings = trainer.get_optimizer_cls_and_kwargs(trainer.args, trainer.model)
    decay = trainer.args.weight_decay
    optimizer = create_loraplus_optimizer(
        trainer.model, cls, loraplus_lr_ratio=ratio, loraplus_weight_decay=decay, **settings
    )
    # ZeRO cannot partition a group without parameters.
    optimizer.param_groups = [group for group in optimizer.param_groups if group["params"]]
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
