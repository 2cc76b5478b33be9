"""Makes transformers' TrainingArguments from a RunConfig."""

from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from training.config.choices import Interval, Precision, Strategy
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.config.sharding import deepspeed_config, fsdp_config
from training.models.activation_checkpointing import NAME
from training.ranks.distributed import set_fsdp_policies
from training.ranks.sequence_parallel import parallelism
from training.run_folder.paths import checkpoints_dir
from training.trainer.optimizers import optimizer_arguments, scheduler_arguments, scheduler_name


def training_arguments(
    config: RunConfig,
    run_dir: Path,
    machine: Machine,
    precision: Precision,
    hidden_size: int | None,
    *,
    evaluates: bool,
    max_steps: int | None = None,
) -> TrainingArguments:
    """Returns the arguments of a run; `max_steps` is set for a stream, which has no end.

    Call it before loading the model: with ZeRO-3 the arguments decide how its weights are sharded.
    """
    arguments = TrainingArguments(
        **_batches(config, max_steps),
        **_optimization(config),
        **_computation(config, machine, precision),
        **_evaluation_and_saving(config, run_dir, evaluates=evaluates),
        **_ranks(config, hidden_size, precision),
        **_logging(config),
        seed=config.seed,
    )
    if config.strategy is Strategy.FSDP:
        # Not in the constructor, which recommends torch's wrappers (see `fsdp_config`).
        arguments.activation_checkpointing = arguments.gradient_checkpointing = config.recomputes
    set_fsdp_policies(arguments, machine, precision)
    return arguments


def _batches(config: RunConfig, max_steps: int | None) -> dict[str, Any]:
    return {
        "num_train_epochs": config.epochs,
        "max_steps": config.max_steps or max_steps or -1,
        # A stream itself resumes at the right row (training/batches/streaming.py).
        "ignore_data_skip": config.streaming,
        "per_device_train_batch_size": config.micro_batch_size,
        "per_device_eval_batch_size": config.micro_batch_size,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "remove_unused_columns": False,
    }


def _optimization(config: RunConfig) -> dict[str, Any]:
    return {
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": scheduler_name(config),
        "lr_scheduler_kwargs": scheduler_arguments(config),
        "warmup_steps": config.warmup,
        "neftune_noise_alpha": config.neftune_noise_alpha,
        **optimizer_arguments(config),
    }


def _computation(config: RunConfig, machine: Machine, precision: Precision) -> dict[str, Any]:
    return {
        "bf16": precision is Precision.BF16,
        "fp16": precision is Precision.FP16,
        "tf32": True if config.tf32 and machine.kind == "cuda" else None,
        NAME: config.recomputes and config.strategy is not Strategy.FSDP,
        f"{NAME}_kwargs": {"use_reentrant": _reentrant(config)} if config.recomputes else None,
        "torch_compile": config.torch_compile,
        "use_cpu": machine.kind == "cpu",
        "dataloader_pin_memory": machine.kind == "cuda",
    }


def _reentrant(config: RunConfig) -> bool:
    """True where trl's trainers recompute so: an adapter under ZeRO-3, whose passes they disable (huggingface/trl#2514)."""
    of_trl = config.task.traits.fuses_head or config.task.traits.scores
    return of_trl and config.method.adapts and config.strategy is Strategy.ZERO3


def _evaluation_and_saving(config: RunConfig, run_dir: Path, *, evaluates: bool) -> dict[str, Any]:
    return {
        "eval_strategy": _interval(config.eval_strategy, config.eval_steps) if evaluates else "no",
        "eval_steps": config.eval_steps or None,
        "metric_for_best_model": "eval_loss" if evaluates else None,
        "greater_is_better": False,
        "output_dir": str(checkpoints_dir(run_dir)),
        "save_strategy": _interval(config.save_strategy, config.save_steps),
        "save_steps": config.save_steps or 500,
        # Lathe deletes old checkpoints after it has sealed a newer one (training/run_folder/checkpoints.py).
        "save_total_limit": None,
    }


def _ranks(config: RunConfig, hidden_size: int | None, precision: Precision) -> dict[str, Any]:
    settings, is_fsdp = deepspeed_config(config, hidden_size, precision), config.strategy is Strategy.FSDP
    if settings and config.sequence_parallel_size > 1:
        # transformers checks it against a world size that ignores sequence parallelism; accelerate recomputes it.
        del settings["train_batch_size"]
    # FSDP reduces gradients in each micro step: until they are reduced, each rank holds those of the whole model.
    synchronization = {"gradient_accumulation_kwargs": {"sync_each_batch": True}} if is_fsdp else {}
    return {
        "fsdp": is_fsdp,
        "fsdp_config": fsdp_config(config),
        "deepspeed": settings,
        "parallelism_config": parallelism(config),
        "ddp_find_unused_parameters": False if config.num_processes > 1 else None,
        # Buffers of language models are constants. To send them would make each forward pass wait for rank 0 (ranks/pace.py).
        "ddp_broadcast_buffers": False if config.num_processes > 1 else None,
        "accelerator_config": {"use_configured_state": True, **synchronization},
    }


def _logging(config: RunConfig) -> dict[str, Any]:
    return {
        "logging_steps": config.logging_steps,
        "logging_first_step": True,
        # Show a NaN loss; the default replaces it with the average of earlier steps.
        "logging_nan_inf_filter": False,
        "report_to": [],
        "disable_tqdm": True,
        "log_level": "warning",
    }


def _interval(by: Interval, steps: float) -> str:
    return by.value if by is Interval.EPOCH or steps else "no"
