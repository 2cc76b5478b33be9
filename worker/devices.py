"""What this machine can train on, by NVML: CUDA is never touched here, since it would hold memory of the GPUs."""

import os
from dataclasses import dataclass
from functools import cache
from typing import Any

import psutil
import pynvml
from sqlmodel import Session, select

from training.rules import Machine
from worker.identity import hostname
from worker.models import DeviceLease
from worker.settings import SettingsError, get_settings

CPU = "cpu"


@dataclass(frozen=True)
class Gpu:
    """A GPU as NVML numbers it (by its place on the bus). `capability` is CUDA's compute capability."""

    index: int
    uuid: str
    name: str
    memory_bytes: int
    capability: tuple[int, int]


def machine() -> Machine:
    """What runs of this worker can use.

    Raises:
        SettingsError: LATHE_DEVICES names a GPU that is not there.
    """
    gpus = usable_gpus()
    if not gpus:
        return Machine()
    bf16 = all(gpu.capability >= (8, 0) for gpu in gpus)
    return Machine("cuda", len(gpus), [gpu.name for gpu in gpus], [gpu.memory_bytes for gpu in gpus], bf16)


def usable_gpus() -> list[Gpu]:
    """The GPUs that LATHE_DEVICES allows, or CUDA_VISIBLE_DEVICES where that is empty; all of them where neither is set.

    Raises:
        SettingsError: LATHE_DEVICES names one that is not there.
    """
    chosen = get_settings().devices.strip().lower()
    if chosen == CPU:
        return []
    if not chosen:
        return [gpu for gpu in all_gpus() if _visible(gpu)]
    present = {str(gpu.index): gpu for gpu in all_gpus()}
    wanted = {part.strip() for part in chosen.split(",") if part.strip()}
    if wanted - present.keys():
        there = f"GPU {', '.join(present)}; give some of these numbers, separated by commas, or" if present else "no GPU; give"
        raise SettingsError(f"LATHE_DEVICES (given: {chosen!r}): this machine has {there} {CPU}.")
    return [gpu for index, gpu in present.items() if index in wanted]


def _visible(gpu: Gpu) -> bool:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    parts = [part.strip() for part in (visible or "").split(",")]
    return visible is None or str(gpu.index) in parts or any(part and gpu.uuid.startswith(part) for part in parts)


@cache
def all_gpus() -> tuple[Gpu, ...]:
    """Every GPU of this machine, asked once; none where there is no driver."""
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
    except pynvml.NVMLError_NotSupported:  # the GPU shares the host's memory and has none of its own
        return psutil.virtual_memory().total


def own_devices() -> list[str]:
    """The names under which this machine's devices are leased: `host/cuda:0`, ... or `host/cpu`, one whole."""
    return [f"{hostname()}/cuda:{gpu.index}" for gpu in usable_gpus()] or [f"{hostname()}/{CPU}"]


def free_devices(*, session: Session) -> list[str]:
    """This machine's devices that no run has leased."""
    taken = set(session.exec(select(DeviceLease.device)))
    return [device for device in own_devices() if device not in taken]


def choose(processes: int, free: list[str]) -> list[str] | None:
    """Which of the `free` devices a run of so many processes takes, or None where they do not suffice.

    A CPU is one device for any number of processes.
    """
    needed = 1 if any(device.endswith(f"/{CPU}") for device in free) else processes
    return free[:needed] if len(free) >= needed else None
