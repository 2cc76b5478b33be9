"""Rules of optimizers, schedulers and number formats; no torch."""

from collections.abc import Iterator

from training.config import Method, Offload, OptimizerName, Precision, RunConfig, Scheduler, Strategy
from training.rules import Conflict, Machine, rule

TAKE_SHARDS = {OptimizerName.ADAMW, OptimizerName.ADAMW_ANYPRECISION, OptimizerName.MUON, OptimizerName.SGD}
"""Optimizers that step on DTensors. Found by trying each: bitsandbytes' have no rule for them, Adafactor mixes them with plain
tensors, and torchao's fail where a matrix is not shared evenly."""


@rule
def muon_needs_whole_matrices(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.optimizer is not OptimizerName.MUON:
        return
    if config.strategy.zero_stage:
        yield Conflict(
            ("optimizer", "strategy"),
            "ZeRO hands the optimizer flat pieces of the weights, and Muon orthogonalises whole matrices.",
            "Set optimizer to adamw, or strategy to ddp.",
            {"optimizer": "adamw"},
        )
    elif config.method.adapts:
        yield Conflict(
            ("optimizer", "method"),
            "Muon is made for whole weight matrices; nothing is known in its favour for an adapter's thin ones.",
            "Set optimizer to adamw, or method to full.",
            {"optimizer": "adamw"},
            blocking=False,
        )


@rule
def anyprecision_trains_bf16_weights(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.optimizer is not OptimizerName.ADAMW_ANYPRECISION:
        return
    precision = machine.best_precision if config.precision is Precision.AUTO else config.precision
    if precision is Precision.FP16:
        yield Conflict(
            ("optimizer", "precision"),
            "adamw_anyprecision keeps the weights in the compute format, and fp16's loss scaling needs them in fp32.",
            "Set optimizer to adamw, or precision to bf16 where the GPU has it.",
            {"optimizer": "adamw"},
        )
    elif precision is Precision.FP32 or config.method.adapts or config.strategy.zero_stage:
        yield Conflict(
            ("optimizer", "precision", "method"),
            "adamw_anyprecision saves memory where all weights train in bf16; fp32 weights, adapters and ZeRO's fp32 copies "
            "are trained as by adamw.",
            "Set optimizer to adamw, or method to full, precision to bf16 and strategy to single or ddp.",
            {"optimizer": "adamw"},
            blocking=False,
        )


@rule
def weights_that_train_need_room_for_updates(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    asked = config.weights_precision
    if asked is Precision.AUTO:
        return
    if config.strategy.zero_stage is not None:
        yield Conflict(
            ("weights_precision", "strategy"),
            "DeepSpeed turns weights into the precision of computing, and keeps an fp32 copy of those that train.",
            "Set weights_precision to auto.",
            {"weights_precision": "auto"},
            blocking=False,
        )
    elif asked is Precision.FP16 and config.method is Method.FULL:
        yield Conflict(
            ("weights_precision", "method"),
            "fp16's loss scaling needs the weights that train in fp32.",
            "Set weights_precision to auto.",
            {"weights_precision": "auto"},
        )
    elif asked is Precision.BF16 and config.method is Method.FULL and config.optimizer is OptimizerName.ADAMW:
        yield Conflict(
            ("weights_precision", "optimizer"),
            "Weights in bf16 lose updates smaller than a 256th of them, which at usual learning rates are most.",
            "Set optimizer to adamw_anyprecision, which keeps what rounding loses, or weights_precision to auto.",
            {"optimizer": "adamw_anyprecision"},
            blocking=False,
        )


@rule
def fsdp_needs_optimizers_that_take_shards(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.strategy is Strategy.FSDP and config.optimizer not in TAKE_SHARDS:
        yield Conflict(
            ("optimizer", "strategy"),
            f"{config.optimizer.value} fails on FSDP's sharded weights.",
            "Set optimizer to adamw, whose state FSDP shards, or strategy to zero2.",
            {"optimizer": "adamw"},
        )


@rule
def paged_optimizers_page_gpu_memory(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.optimizer.paged and (machine.kind == "cpu" or config.offload_optimizer is not Offload.NONE):
        where = (
            "This machine has no GPU" if machine.kind == "cpu" else "offload_optimizer keeps the state in host memory"
        )
        yield Conflict(
            ("optimizer",),
            f"{where}, so that there is no GPU memory to page to the host.",
            "Set optimizer to adamw_8bit.",
            {"optimizer": "adamw_8bit"},
            blocking=False,
        )


@rule
def adafactor_factors_whole_matrices(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.optimizer is OptimizerName.ADAFACTOR and config.strategy.zero_stage:
        yield Conflict(
            ("optimizer", "strategy"),
            "ZeRO hands the optimizer flat pieces of the weights, for which adafactor keeps a whole second moment.",
            "Set optimizer to adamw_8bit, or strategy to ddp.",
            {"optimizer": "adamw_8bit"},
            blocking=False,
        )


@rule
def a_plateau_is_seen_by_evaluating(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.lr_scheduler is Scheduler.REDUCE_ON_PLATEAU and not config.evaluates:
        yield Conflict(
            ("lr_scheduler", "eval_steps", "eval_split"),
            "reduce_on_plateau goes by the evaluation loss, and nothing is evaluated while training.",
            "Set eval_steps and eval_split above 0, or lr_scheduler to cosine.",
            {"lr_scheduler": "cosine"},
        )


@rule
def warmup_and_decay_fit_into_the_run(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.lr_scheduler is Scheduler.WSD and config.warmup < 1 and config.warmup + config.decay_share > 1:
        yield Conflict(
            ("decay_share", "warmup"),
            f"Warmup ({config.warmup:g}) and decay ({config.decay_share:g}) together are longer than the run.",
            "Make one of them shorter.",
            {"decay_share": round(1 - config.warmup, 4)},
        )


@rule
def tf32_needs_ampere(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.tf32 and (machine.kind == "cpu" or not machine.bf16):  # both came with Ampere
        what = "A CPU" if machine.kind == "cpu" else machine.names[0] if machine.names else "This GPU"
        on_gpu = machine.kind == "cuda"
        yield Conflict(("tf32",), f"{what} has no TF32.", "Set tf32 to false.", {"tf32": False}, blocking=on_gpu)
