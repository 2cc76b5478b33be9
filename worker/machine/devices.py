"""The devices of this machine, by NVML: using CUDA here would allocate GPU memory."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import psutil
import pynvml
from sqlmodel import Session, select

from training.config.machine import Machine
from worker.machine.process_identity import hostname
from worker.settings import SettingsError, get_settings
from worker.store import nodes
from worker.store.tables import DeviceLease

CPU = "cpu"
JOB = "/slurm:"
"""In the lease of a node in a job of Slurm: node/slurm:job."""


@dataclass(frozen=True)
class Gpu:
    """A GPU with its NVML index (PCI bus order). `capability` is the CUDA compute capability."""

    index: int
    uuid: str
    name: str
    memory_bytes: int
    capability: tuple[int, int]


def machine(leased: Sequence[str] | None = None) -> Machine:
    """The devices that runs of this worker can use, or those of them in `leased` (as `own_devices` names them).

    In a job of Slurm all that the job has: `leased` then names the node and the job.

    Raises:
        SettingsError: LATHE_DEVICES names a GPU that does not exist.
    """
    in_job = leased is not None and any(JOB in device for device in leased)
    gpus = [gpu for gpu in usable_gpus() if leased is None or in_job or _lease_name(gpu) in leased]
    if not gpus:
        return Machine(cores=len(os.sched_getaffinity(0)))
    bf16 = all(gpu.capability >= (8, 0) for gpu in gpus)
    return Machine("cuda", len(gpus), [gpu.name for gpu in gpus], [gpu.memory_bytes for gpu in gpus], bf16)


def usable_gpus() -> list[Gpu]:
    """The GPUs of LATHE_DEVICES, else of CUDA_VISIBLE_DEVICES, else all.

    Raises:
        SettingsError: LATHE_DEVICES names a GPU that does not exist.
    """
    chosen = get_settings().devices.strip().lower()
    if chosen == CPU:
        return []
    if not chosen:
        return [gpu for gpu in all_gpus() if _visible(gpu)]
    present = {str(gpu.index): gpu for gpu in all_gpus()}
    wanted = {part.strip() for part in chosen.split(",") if part.strip()}
    if wanted - present.keys():
        there = f"GPU {', '.join(present)}" if present else "no GPU"
        fix = f"Give some of these numbers, separated by commas, or {CPU}." if present else f"Give {CPU}."
        raise SettingsError("LATHE_DEVICES", chosen, f"this machine has {there}.", fix)
    return [gpu for index, gpu in present.items() if index in wanted]


def _visible(gpu: Gpu) -> bool:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    parts = [part.strip() for part in (visible or "").split(",")]
    return visible is None or str(gpu.index) in parts or any(part and gpu.uuid.startswith(part) for part in parts)


@cache
def all_gpus() -> tuple[Gpu, ...]:
    """Every GPU of this machine, queried once; none without a driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        return tuple(_gpu(index) for index in range(pynvml.nvmlDeviceGetCount()))
    finally:
        pynvml.nvmlShutdown()


def _gpu(index: int) -> Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    uuid, name = str(pynvml.nvmlDeviceGetUUID(handle)), str(pynvml.nvmlDeviceGetName(handle))
    return Gpu(index, uuid, name, _memory_bytes(handle), (int(major), int(minor)))


def _memory_bytes(handle: Any) -> int:
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    except pynvml.NVMLError_NotSupported:  # the GPU shares the host's memory
        return psutil.virtual_memory().total


def own_devices() -> list[str]:
    """The lease names of this machine's devices: `host/cuda:0`, ..., or `host/cpu` as one device."""
    return [_lease_name(gpu) for gpu in usable_gpus()] or [f"{hostname()}/{CPU}"]


def _lease_name(gpu: Gpu) -> str:
    return f"{hostname()}/cuda:{gpu.index}"


def free_devices(*, session: Session) -> list[str]:
    """This machine's devices that no run has leased."""
    taken = {*session.exec(select(DeviceLease.device)), *nodes.devices_in_use(session=session)}
    return [device for device in own_devices() if device not in taken]


def choose(processes: int, free: list[str]) -> list[str] | None:
    """The `free` devices that a run of `processes` takes, or None if there are too few.

    A CPU is one device for any number of processes.
    """
    needed = 1 if any(device.endswith(f"/{CPU}") for device in free) else processes
    return free[:needed] if len(free) >= needed else None
