"""Options of launchers and keys of accelerate's configuration: on how many processes a run trains, and how it is sharded."""

import re
from typing import Any

from training.foreign.entries import IS_OFF, Answer, Rule, Table, Values, choice, ignored, is_off, is_on, read
from training.foreign.sharding import from_fsdp, from_name, from_zero, number
from training.foreign.shell_values import Unresolved

_ALL_DEVICES = "is not given: it starts a process for each device of its machine. Set num_processes."
_ELSEWHERE = "is decided by the machine. Set num_processes."
_STRATEGIES = {"no": "single", "fsdp": "fsdp"} | dict.fromkeys(
    ("multi_gpu", "multi_cpu", "multi_xpu", "multi_npu"), "ddp"
)
_OF_ZERO = (
    "zero_stage",
    *(f"offload_{part}_{key}" for part in ("optimizer", "param") for key in ("device", "nvme_path")),
)


def visible_devices(values: Values) -> int | None:
    """The number of devices that CUDA_VISIBLE_DEVICES names; None if it is not given or not a list of numbers."""
    given = values.get("CUDA_VISIBLE_DEVICES", values.get("ASCEND_RT_VISIBLE_DEVICES", ""))
    text = str(given).strip().rstrip(",")
    listed = not isinstance(given, Unresolved) and re.fullmatch(r"\d+(\s*,\s*\d+)*", text)
    return text.count(",") + 1 if listed else None


def processes(count: Any, machines: Any = 1) -> Values | None:
    """The settings for `count` processes on each of several machines; None if one of them is no number."""
    numbers = [count_of(count), count_of(machines if machines is not None else 1)]
    if None in numbers:
        return None
    per_machine, nodes = (one or 1 for one in numbers)
    settings: Values = {"num_processes": per_machine * nodes}
    if per_machine * nodes > 1:
        settings["strategy"] = "ddp"
    return settings | ({"num_machines": nodes} if nodes > 1 else {})


def count_of(value: Any) -> int | None:
    """A number of processes or machines; of a range such as 1:4 the largest. None if it is none."""
    text = str(value).rpartition(":")[2]
    return int(text) if not isinstance(value, Unresolved) and re.fullmatch(r"[1-9]\d{0,5}", text) else None


def _per_machine(key: str, machines: str) -> Rule:
    """A rule for the number of processes on each machine."""

    def rule(value: Any, values: Values) -> Answer:
        count = count_of(value) or visible_devices(values)
        settings = processes(count, values.get(machines)) if count else None
        if settings is None:
            return Answer(None, _ALL_DEVICES if value is None else f"{key} {_ELSEWHERE}")
        return Answer(settings, "" if count_of(value) else "as CUDA_VISIBLE_DEVICES says.")

    return rule


def _machines(value: Any, _: Values) -> Answer:
    count = count_of(value)
    return Answer({"num_machines": count}) if count else Answer(None, "is decided by the machine. Set num_machines.")


def _included(value: Any, _: Values) -> Answer:
    """deepspeed's include: `host:0,1@other:0,1`."""
    devices = 0
    hosts = str(value).split("@")
    for host in hosts:
        colon, listed = host.partition(":")[1:]
        if not colon or not re.fullmatch(r"\d+(,\d+)*", listed.strip()):
            return Answer(None, _ELSEWHERE)
        devices += listed.count(",") + 1
    return Answer(processes(devices // len(hosts), len(hosts)))


def _deepspeed_count(value: Any, values: Values) -> Answer:
    if value is None and "include" in values:
        return Answer({}, "include says this.")
    return _per_machine("num_gpus", "num_nodes")(value, values)


def _accelerate_count(value: Any, values: Values) -> Answer:
    """num_processes of accelerate: those of all machines."""
    if _is_single(values):
        return Answer({"num_processes": 1}, "distributed_type NO starts one process.")
    count = count_of(value) or (visible_devices(values) if is_off(value) else None)
    if count is None:
        return Answer(None, _ALL_DEVICES if is_off(value) else f"num_processes {_ELSEWHERE}")
    keys = ("distributed_type", "use_deepspeed", "use_fsdp", "deepspeed_config", "accelerate_config")
    sharded = any(not is_off(values.get(key)) for key in keys)
    return Answer({"num_processes": count} | ({"strategy": "ddp"} if count > 1 and not sharded else {}))


def unread_section(kind: str, values: Values) -> Answer | None:
    """The answer for a section of FSDP or DeepSpeed that the program does not read; None if it does."""
    if kind in values and kind == "fsdp":
        return Answer({}, "has no effect without fsdp.") if is_off(values["fsdp"]) else None
    given = values.get("distributed_type")
    if is_on(values.get(f"use_{kind}")) or (given is None and kind == "deepspeed") or str(given).lower() == kind:
        return None
    return Answer({}, f"has no effect without {'fsdp' if given is None else f'distributed_type {kind.upper()}'}.")


def _is_single(values: Values) -> bool:
    """True for a configuration that starts one process, whatever its num_processes."""
    turned_on = any(is_on(values.get(name)) for name in ("multi_gpu", "use_deepspeed", "use_fsdp"))
    given = values.get("distributed_type")
    return given is not None and str(given).lower() in ("no", "false") and not turned_on


def _parallelism(value: Any, _: Values) -> Answer:
    """parallelism_config: processes that share a sequence or the matrices of a model."""
    section = value if isinstance(value, dict) else {}
    sizes = {str(name).removeprefix("parallelism_config_"): count_of(size) or 1 for name, size in section.items()}
    shared = max(sizes.get("sp_size", 1), sizes.get("cp_size", 1))
    note = "ZeRO-3 or FSDP is the nearest to tensor parallelism." if sizes.get("tp_size", 1) > 1 else ""
    settings: Values = {"sequence_parallel_size": shared} if shared > 1 else {}
    return Answer(settings if settings or not note else None, note)


def _named(value: Any, _: Values) -> Answer:
    """A configuration of accelerate: one that trl brings, or a file that is not here."""
    settings = from_name(str(value))
    return Answer(
        settings, "" if settings else f"{str(value)[:200]} is not here. Import that file too, or set strategy."
    )


def _distributed(value: Any, values: Values) -> Answer:
    """distributed_type; the stage of ZeRO is in deepspeed_config, or in options beside it."""
    if str(value).upper() == "DEEPSPEED":
        section = values.get("deepspeed_config")
        if isinstance(section, dict):
            return Answer({}, "deepspeed_config says the stage.")
        return Answer(from_zero(values))
    if str(value).upper() == "FSDP":
        section = values.get("fsdp_config")
        return Answer(from_fsdp(section if isinstance(section, dict) else values))
    if _is_single(values):
        return Answer({"strategy": "single", "num_processes": 1})
    return choice("strategy", _STRATEGIES, "single")("no" if is_off(value) else value, values)


def _uses(kind: str) -> Rule:
    return lambda value, values: IS_OFF if is_off(value) else _distributed(kind, values)


def _of_zero(_: Any, values: Values) -> Answer:
    """An option of ZeRO beside use_deepspeed."""
    if is_on(values.get("use_deepspeed")) or str(values.get("distributed_type")).upper() == "DEEPSPEED":
        return Answer({}, "belongs to use_deepspeed.")
    return Answer({}, "has no effect without use_deepspeed.")


_ACCELERATE = read("accelerate")
ACCELERATE: Table = {
    **_ACCELERATE.rules,
    "distributed_type": _distributed,
    "mixed_precision": lambda value, values: (
        Answer({}, "is left to the program: its bf16 or fp16 says it.")
        if is_off(value)
        else _ACCELERATE.rules["mixed_precision"](value, values)
    ),
    "num_processes": _accelerate_count,
    "num_machines": _machines,
    "parallelism_config": _parallelism,
    "config_file": _named,
    "accelerate_config": _named,
    "use_deepspeed": _uses("DEEPSPEED"),
    "use_fsdp": _uses("FSDP"),
    "gradient_accumulation_steps": number("gradient_accumulation_steps", "is left to the program."),
    "gradient_clipping": number("max_grad_norm", "is left to the program."),
    **dict.fromkeys(_OF_ZERO, _of_zero),
}
ACCELERATE_PREFIXES = _ACCELERATE.prefixes
TORCHRUN: Table = {
    "nproc_per_node": _per_machine("nproc_per_node", "nnodes"),
    "nnodes": _machines,
    "CUDA_VISIBLE_DEVICES": ACCELERATE["CUDA_VISIBLE_DEVICES"],
}
DEEPSPEED: Table = {
    "num_gpus": _deepspeed_count,
    "num_nodes": _machines,
    "include": _included,
    "CUDA_VISIBLE_DEVICES": ACCELERATE["CUDA_VISIBLE_DEVICES"],
}
BY_ITSELF: Table = {
    "NPROC_PER_NODE": _per_machine("NPROC_PER_NODE", "NNODES"),
    "NNODES": _machines,
    "CUDA_VISIBLE_DEVICES": lambda _, values: (
        Answer({}, "NPROC_PER_NODE says on how many devices it trains.") if values.get("NPROC_PER_NODE")
        else Answer(settings) if (settings := processes(visible_devices(values)))
        else Answer({}, "the worker decides on which devices a run trains.")
    ),
}  # fmt: skip
"""A program that starts its processes by itself, or uses several devices from one."""
ONE_PROCESS: Table = {
    **BY_ITSELF,
    "CUDA_VISIBLE_DEVICES": ignored("one process divides the model over them; set strategy fsdp or zero3 for that."),
}
"""A program that divides the model over the devices of one process."""
OF_TRL: Table = {
    name: ACCELERATE[name]
    for name in ("num_processes", "num_machines", "mixed_precision", "accelerate_config", "machine_rank", "main_process_ip",
                 "main_process_port", "gpu_ids", "use_deepspeed", "use_fsdp", "multi_gpu")
}  # fmt: skip
"""What trl's command passes on to accelerate."""
OTHERS: Table = {"": ignored("Lathe launches the ranks itself.")}
