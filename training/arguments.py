"""RunConfig -> transformers' TrainingArguments."""

from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from training.config import Interval, Precision, RunConfig, Strategy
from training.distributed import set_fsdp_policies
from training.fsdp import fsdp_config
from training.manifest import checkpoints_dir
from training.objectives import Objective
from training.optimizers import optimizer_arguments
from training.rules import Machine
from training.schedules import scheduler_arguments, scheduler_name
from training.sequence_parallel import parallelism
from training.zero import deepspeed_config


def training_arguments(
    config: RunConfig,
    run_dir: Path,
    machine: Machine,
    precision: Precision,
    hidden_size: int | None,
    objective: Objective,
    *,
    evaluates: bool,
    max_steps: int | None = None,
) -> TrainingArguments:
    """The arguments of a run; `max_steps` are those of data without an end.

    Made before the model is loaded: with ZeRO-3 they decide how its weights are placed.
    """
    arguments = objective.arguments(
        **objective.options,
        output_dir=str(checkpoints_dir(run_dir)),
        num_train_epochs=config.epochs,
        max_steps=config.max_steps or max_steps or -1,
        # A stream goes on at the right row by itself (training/streaming.py).
        ignore_data_skip=config.streaming,
        per_device_train_batch_size=config.micro_batch_size,
        per_device_eval_batch_size=config.micro_batch_size,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        learning_rate=config.learning_rate,
        lr_scheduler_type=scheduler_name(config),
        lr_scheduler_kwargs=scheduler_arguments(config),
        warmup_steps=config.warmup,
        neftune_noise_alpha=config.neftune_noise_alpha,
        **optimizer_arguments(config),
        seed=config.seed,
        bf16=precision is Precision.BF16,
        fp16=precision is Precision.FP16,
        tf32=True if config.tf32 and machine.kind == "cuda" else None,
        gradient_checkpointing=config.recomputes and config.strategy is not Strategy.FSDP,
        gradient_checkpointing_kwargs={"use_reentrant": False} if config.recomputes else None,
        torch_compile=config.torch_compile,
        logging_steps=config.logging_steps,
        logging_first_step=True,
        # A loss that is NaN is the news; the default would hide it behind the average of the steps before.
        logging_nan_inf_filter=False,
        eval_strategy=_interval(config.eval_strategy, config.eval_steps) if evaluates else "no",
        eval_steps=config.eval_steps or None,
        metric_for_best_model="eval_loss" if evaluates else None,
        greater_is_better=False,
        save_strategy=_interval(config.save_strategy, config.save_steps),
        save_steps=config.save_steps or 500,
        # Old checkpoints go only once a newer one is sealed (training/manifest.py), which the library cannot know of.
        save_total_limit=None,
        fsdp=config.strategy is Strategy.FSDP,
        fsdp_config=fsdp_config(config),
        deepspeed=_deepspeed(config, hidden_size, precision),
        parallelism_config=parallelism(config),
        ddp_find_unused_parameters=False if config.num_processes > 1 else None,
        use_cpu=machine.kind == "cpu",
        accelerator_config={"use_configured_state": True},
        remove_unused_columns=False,
        dataloader_pin_memory=machine.kind == "cuda",
        report_to=[],
        disable_tqdm=True,
        log_level="warning",
    )
    set_fsdp_policies(arguments, machine, precision)
    return arguments


def _deepspeed(config: RunConfig, hidden_size: int | None, precision: Precision) -> dict[str, Any] | None:
    made = deepspeed_config(config, hidden_size, precision)
    if made and config.sequence_parallel_size > 1:
        # transformers would count processes that share a sequence as if they trained on one each; accelerate counts anew.
        del made["train_batch_size"]
    return made


def _interval(by: Interval, steps: float) -> str:
    return by.value if by is Interval.EPOCH or steps else "no"
