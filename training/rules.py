"""Which settings go together. Each rule is a function that names the reason and the fix; nothing here imports torch.

A new rule is one function in this file with `@rule` above it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from training.config import (
    Method,
    Offload,
    Precision,
    Quantization,
    RunConfig,
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


from training import (  # noqa: E402, F401 - they register their rules, and need what is above
    deepspeed_rules,
    method_rules,
    optimizer_rules,
    output_rules,
    probe_rules,
    speed_rules,
    strategy_rules,
)
