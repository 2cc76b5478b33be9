"""The devices of this machine that runs can lease, and how a process sees those that it leased.

This needs no database: a machine that only trains has none (benchmarks.gpu).
"""

import os
import re
from collections.abc import Iterator, Sequence

from training.config.machine import Machine
from training.run_folder.paths import LEASED_GPUS_VARIABLE
from worker.machine.gpus import Gpu, all_gpus, driver_problem
from worker.machine.process_identity import hostname
from worker.settings import SettingsError, get_settings

CPU = "cpu"
JOB = "/slurm:"
"""In the lease of a node in a job of Slurm: node/slurm:job."""

_HIDDEN = ("", "-1", "void", "none", "nodevfiles")  # values of CUDA_VISIBLE_DEVICES that hide all GPUs on purpose


def machine(leased: Sequence[str] | None = None) -> Machine:
    """The devices that runs of this worker can use, or those of them in `leased` (as `own_devices` names them).

    In a job of Slurm all that the job has: `leased` then names the node and the job.

    Raises:
        SettingsError: LATHE_DEVICES names a GPU that does not exist.
    """
    in_job = leased is not None and any(JOB in device for device in leased)
    gpus = [gpu for gpu in usable_gpus() if leased is None or in_job or lease_name(gpu) in leased]
    if not gpus:
        return Machine(cores=cores())
    bf16 = all(gpu.capability >= (8, 0) for gpu in gpus)
    return Machine("cuda", len(gpus), [gpu.name for gpu in gpus], [gpu.memory_bytes for gpu in gpus], bf16)


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_gpus() -> list[Gpu]:
    """The GPUs of `chosen_gpus` without a problem.

    Raises:
        SettingsError: LATHE_DEVICES names a GPU that does not exist.
    """
    return [gpu for gpu in chosen_gpus() if not gpu.problem]


def chosen_gpus() -> list[Gpu]:
    """The GPUs of LATHE_DEVICES, else of CUDA_VISIBLE_DEVICES, else all; also those that have a problem.

    Raises:
        SettingsError: LATHE_DEVICES names a GPU that does not exist.
    """
    chosen = get_settings().devices.strip()
    if chosen.lower() == CPU:
        return []
    if not chosen:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        return list(all_gpus()) if visible is None else sorted(_visible(visible), key=lambda gpu: gpu.number)
    present, wanted = all_gpus(), [part.strip() for part in chosen.split(",") if part.strip()]
    found = [_named(name, present) for name in wanted]
    if None in found and not driver_problem():
        there = f"GPU {', '.join(gpu.number for gpu in present)}" if present else "no GPU"
        fix = f"Give some of these, separated by commas, their UUIDs, or {CPU}." if present else f"Give {CPU}."
        raise SettingsError("LATHE_DEVICES", chosen, f"this machine has {there}.", fix)
    return [gpu for gpu in present if gpu in found]


def problem() -> str:
    """Why this machine can train neither on its GPUs nor on the CPU, which would be silent; "" if it can train.

    Raises:
        SettingsError: LATHE_DEVICES names a GPU that does not exist.
    """
    if get_settings().devices.strip().lower() == CPU:
        return ""
    chosen = chosen_gpus()
    if reason := driver_problem():
        return f"{reason} To train on the CPU meanwhile, set LATHE_DEVICES={CPU}."
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if not chosen and not get_settings().devices and visible.strip().lower() not in _HIDDEN and all_gpus():
        return f"CUDA_VISIBLE_DEVICES={visible} names no GPU of this machine: correct it, or set LATHE_DEVICES={CPU}."
    if chosen and all(gpu.problem for gpu in chosen):
        return " ".join(f"GPU {gpu.number}: {gpu.problem}" for gpu in chosen)
    return ""


def _visible(text: str) -> Iterator[Gpu]:
    """The GPUs in a value of CUDA_VISIBLE_DEVICES: like CUDA, those before the first name that none has."""
    for part in text.split(","):
        gpu = _named(part.strip(), all_gpus())
        if gpu is None:
            return
        yield gpu


def _named(name: str, present: Sequence[Gpu]) -> Gpu | None:
    """The GPU with this number, or whose UUID alone begins so."""
    if re.fullmatch(r"[\d.]+", name):
        return next((gpu for gpu in present if gpu.number == name), None)
    matching = [gpu for gpu in present if name and gpu.uuid.lower().startswith(name.lower())]
    return matching[0] if len(matching) == 1 else None


def own_devices() -> list[str]:
    """The lease names of this machine's devices: `host/cuda:0`, ..., or without GPUs `host/cpu` as one device.

    A machine whose GPUs all have a problem has no device.
    """
    gpus = [lease_name(gpu) for gpu in usable_gpus()]
    return gpus if gpus or problem() else [f"{hostname()}/{CPU}"]


def lease_name(gpu: Gpu) -> str:
    """The name of a GPU of this machine in leases."""
    return f"{hostname()}/cuda:{gpu.number}"


def variables(leased: Sequence[str]) -> dict[str, str]:
    """The environment in which a process sees the leased GPUs of this machine, and no others."""
    numbers = [device.rpartition(":")[2] for device in leased if "/cuda:" in device]
    names = {gpu.number: gpu.visible for gpu in all_gpus()} if any("." in number for number in numbers) else {}
    visible = ",".join(names.get(number, number) for number in numbers)
    count = str(len(numbers))
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": visible, LEASED_GPUS_VARIABLE: count}


def choose(processes: int, free: list[str]) -> list[str] | None:
    """The `free` devices that a run of `processes` takes, or None if there are too few.

    A CPU is one device for any number of processes.
    """
    needed = 1 if any(device.endswith(f"/{CPU}") for device in free) else processes
    return free[:needed] if len(free) >= needed else None
