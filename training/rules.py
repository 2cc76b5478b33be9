"""Which settings go together. Each rule is a function that names the reason and the fix; nothing here imports torch.

A new rule is one function in this file with `@rule` above it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from training.config import (
    Interval,
    Method,
    Offload,
    OptimizerName,
    Precision,
    Quantization,
    RunConfig,
    Scheduler,
    Strategy,
    Task,
)


@dataclass(frozen=True)
class Machine:
    """What training runs on. `devices` counts GPUs; a machine without one is a single CPU device of any number of processes."""

    kind: Literal["cuda", "cpu"] = "cpu"
    devices: int = 1
    names: list[str] = field(default_factory=list)
    memory_bytes: list[int] = field(default_factory=list)
    bf16: bool = True

    @property
    def best_precision(self) -> Precision:
        """What `precision: auto` means here."""
        if self.kind == "cpu":
            return Precision.FP32
        return Precision.BF16 if self.bf16 else Precision.FP16


@dataclass(frozen=True)
class Conflict:
    """Settings that cannot (`blocking`) or should not go together, why, and `changes` (setting to value) that mend it."""

    settings: tuple[str, ...]
    reason: str
    fix: str
    changes: dict[str, Any]
    blocking: bool = True


Rule = Callable[[RunConfig, Machine], Iterator[Conflict]]
_RULES: list[Rule] = []


def check(config: RunConfig, machine: Machine) -> list[Conflict]:
    """Every conflict in `config` on `machine`, in the order of the rules."""
    return [conflict for one in _RULES for conflict in one(config, machine)]


def rule(function: Rule) -> Rule:
    _RULES.append(function)
    return function


@rule
def one_process_needs_no_strategy(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    zero = config.strategy.zero_stage is not None
    offloads = zero and {config.offload_optimizer, config.offload_param} != {Offload.NONE} and machine.kind == "cuda"
    if config.num_processes > 1 or config.strategy is Strategy.SINGLE or offloads:
        return
    what = {Strategy.DDP: "DDP copies the model", Strategy.FSDP: "FSDP shards the model"}.get(
        config.strategy, "ZeRO shards its state"
    )
    more = min(2, machine.devices) if machine.kind == "cuda" else 2
    fix = "Set strategy to single" + (f", or num_processes to {more}." if more > 1 else ".")
    yield Conflict(
        ("strategy", "num_processes"), f"{what} across processes, and num_processes is 1.", fix, {"strategy": "single"}
    )


@rule
def several_processes_need_a_strategy(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.num_processes > 1 and config.strategy is Strategy.SINGLE:
        yield Conflict(
            ("strategy", "num_processes"),
            f"strategy single trains on one device, and num_processes is {config.num_processes}.",
            "Set num_processes to 1, or strategy to ddp, fsdp or one of zero1 to zero3.",
            {"num_processes": 1},
        )


@rule
def no_more_processes_than_devices(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if machine.kind == "cuda" and config.num_processes > machine.devices:
        yield Conflict(
            ("num_processes",),
            f"{config.num_processes} processes need as many GPUs, and this machine has {machine.devices}.",
            f"Set num_processes to at most {machine.devices}.",
            {"num_processes": machine.devices, **({"strategy": "single"} if machine.devices == 1 else {})},
        )


@rule
def optimizer_offload_needs_zero(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.offload_optimizer is Offload.NONE or (config.strategy.zero_stage or 0) >= 1:
        return
    if config.strategy is Strategy.FSDP:
        reason = "FSDP offloads parameters, gradients and optimizer together, by offload_param."
        fix, changes = "Set offload_optimizer to none and offload_param to cpu.", {"offload_param": "cpu"}
    else:
        reason = "The optimizer's state is offloaded by ZeRO stages 1 to 3 only."
        fix, changes = "Set offload_optimizer to none, or strategy to zero2.", {}
    yield Conflict(("offload_optimizer", "strategy"), reason, fix, changes | {"offload_optimizer": "none"})


@rule
def parameter_offload_needs_zero3(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.offload_param is not Offload.NONE and config.strategy not in (Strategy.ZERO3, Strategy.FSDP):
        yield Conflict(
            ("offload_param", "strategy"),
            "Parameters are offloaded by ZeRO stage 3 and by FSDP only.",
            "Set offload_param to none, or strategy to zero3 or fsdp.",
            {"offload_param": "none"},
        )


@rule
def precision_must_exist_on_the_device(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.precision is Precision.FP16 and machine.kind == "cpu":
        reason = "fp16 needs a GPU: its loss scaling does not run on CPU."
    elif config.precision is Precision.BF16 and machine.kind == "cuda" and not machine.bf16:
        reason = f"{machine.names[0] if machine.names else 'This GPU'} has no bf16."
    else:
        return
    best = machine.best_precision.value
    yield Conflict(("precision",), reason, f"Set precision to {best}, or auto.", {"precision": best})


@rule
def quantized_weights_cannot_train(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.method is Method.FULL and config.quantization is not Quantization.NONE:
        yield Conflict(
            ("quantization", "method"),
            f"Weights held in {config.quantization.value} cannot be trained themselves.",
            "Set method to qlora, or quantization to none.",
            {"method": "qlora"},
        )


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
def the_best_is_found_by_evaluating(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.evaluates:
        return
    for name, off in (("early_stopping_patience", None), ("load_best_at_end", False)):
        if getattr(config, name):
            yield Conflict(
                (name, "eval_steps", "eval_split"),
                f"{name} goes by the evaluation loss, and nothing is evaluated while training.",
                f"Set eval_steps and eval_split above 0, or leave {name} {'empty' if off is None else 'off'}.",
                {name: off},
            )


@rule
def only_an_adapter_is_merged(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.merge_adapter and not config.method.adapts:
        yield Conflict(
            ("merge_adapter", "method"),
            f"Method {config.method.value} trains the model itself: there is no adapter to merge.",
            "Set merge_adapter to false; the result is a whole model anyway.",
            {"merge_adapter": False},
        )


@rule
def a_stream_has_no_epochs(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    for name in ("eval_strategy", "save_strategy"):
        if config.streaming and getattr(config, name) is Interval.EPOCH:
            yield Conflict(
                (name, "streaming"),
                "A stream is read without a break between epochs.",
                f"Set {name} to steps.",
                {name: "steps"},
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


@rule
def a_memory_limit_is_a_gpu_s(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.memory_limit is not None and machine.kind == "cpu":
        yield Conflict(
            ("memory_limit",),
            "Only GPU memory is limited, and this machine has no GPU.",
            "Leave memory_limit empty.",
            {"memory_limit": None},
            blocking=False,
        )


@rule
def answers_need_held_out_rows(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.answer_rows and not config.holds_out:
        yield Conflict(
            ("answer_rows", "eval_split"),
            "There are no held-out rows to answer: eval_split is 0 and validation_data is empty.",
            "Set eval_split above 0, give validation_data, or set answer_rows to 0.",
            {"answer_rows": 0},
        )


@rule
def evaluation_needs_held_out_rows(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.eval_steps and not config.holds_out and "eval_steps" in config.model_fields_set:
        yield Conflict(
            ("eval_steps", "eval_split"),
            "There are no held-out rows to evaluate: eval_split is 0 and validation_data is empty.",
            "Nothing will be evaluated; set eval_split above 0 to see the evaluation loss.",
            {"eval_split": 0.05},
            blocking=False,
        )


@rule
def full_fine_tuning_wants_a_small_learning_rate(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.method is Method.FULL and config.learning_rate >= 1e-3:
        yield Conflict(
            ("learning_rate", "method"),
            f"A learning rate of {config.learning_rate:g} is likely to destroy what the model knows when every weight trains.",
            "Full fine-tuning mostly uses 1e-5 to 5e-5.",
            {"learning_rate": 2e-5},
            blocking=False,
        )


@rule
def only_text_can_be_compared(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.answer_rows and not config.task.generates:
        yield Conflict(
            ("answer_rows", "task"),
            f"A model of the task {config.task.value} gives numbers, and writes no answers.",
            "Set answer_rows to 0; the evaluation says how accurate it is.",
            {"answer_rows": 0},
        )


@rule
def kto_compares_within_a_batch(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.task is Task.KTO and config.micro_batch_size < 2:
        yield Conflict(
            ("micro_batch_size", "task"),
            "KTO compares each prompt with another row's answer of the same batch, and micro_batch_size is 1.",
            "Set micro_batch_size to 2 or more.",
            {"micro_batch_size": 2},
        )


@rule
def settings_of_other_tasks(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    for name, tasks in _OF_TASKS.items():
        if config.task not in tasks and getattr(config, name) != type(config).model_fields[name].default:
            yield Conflict(
                (name, "task"),
                f"{name} has no effect on the task {config.task.value}.",
                f"It is of {' and '.join(task.value for task in tasks)}.",
                {name: type(config).model_fields[name].default},
                blocking=False,
            )


_OF_TASKS = {
    "train_on_prompt": (Task.SFT,),
    "max_target_length": (Task.SEQ2SEQ,),
    "beta": (Task.DPO, Task.KTO, Task.ORPO),
    "dpo_loss": (Task.DPO,),
    "desirable_weight": (Task.KTO,),
    "undesirable_weight": (Task.KTO,),
}


@rule
def streams_are_for_supervised_fine_tuning(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.streaming and config.task is not Task.SFT:
        yield Conflict(
            ("streaming", "task"),
            f"The task {config.task.value} reads its rows from the tokenized set, and a stream has none.",
            "Set streaming to false.",
            {"streaming": False},
        )


@rule
def a_stream_is_taken_as_it_comes(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    for name, what in (
        ("stratify_by", "The held-out rows of a stream are its first ones"),
        ("max_samples", "A stream is never seen whole"),
    ):
        if config.streaming and getattr(config, name) is not None:
            yield Conflict(
                (name, "streaming"),
                f"{what}, and {name} draws from all rows.",
                f"Leave {name} empty"
                + (" and set data_slice or max_steps" if name == "max_samples" else "")
                + ", or set streaming to false.",
                {name: None},
            )


from training import method_rules, strategy_rules  # noqa: E402, F401 - they register their rules, and need what is above
