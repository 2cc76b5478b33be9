"""The GPUs of this machine as NVML lists them, the faulty ones too: using CUDA here would allocate GPU memory."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pynvml

from training.units import byte_size

_BUSY_SHARE = 0.2
_SECONDS = 20.0  # GPUs fall off the bus and come back while a worker runs
_NONE = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_GPU_NOT_FOUND)
_CURES = {
    pynvml.NVML_ERROR_GPU_IS_LOST: "It has fallen off the bus: reboot the machine.",
    pynvml.NVML_ERROR_RESET_REQUIRED: "Reset it (nvidia-smi --gpu-reset -i {}), or reboot the machine.",
    pynvml.NVML_ERROR_NO_PERMISSION: "Let Lathe's user open the files /dev/nvidia*.",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "Load the driver (modprobe nvidia), or install it again after an update of the kernel.",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "The driver was updated: reboot the machine, or restart the container.",
}


@dataclass(frozen=True)
class Gpu:
    """A GPU with its NVML index (PCI bus order), or an instance of it (MIG). `capability` is the CUDA compute capability.

    `problem` says why it cannot be used; then name, memory and capability may be unknown ("", 0 and (0, 0)).
    """

    index: int
    uuid: str
    name: str
    memory_bytes: int
    capability: tuple[int, int]
    instance: int | None = None
    problem: str = ""

    @property
    def number(self) -> str:
        """Its name in leases and LATHE_DEVICES: "0", or "0.1" for an instance."""
        return str(self.index) if self.instance is None else f"{self.index}.{self.instance}"

    @property
    def visible(self) -> str:
        """Its name in CUDA_VISIBLE_DEVICES, with CUDA_DEVICE_ORDER=PCI_BUS_ID."""
        return str(self.index) if self.instance is None else self.uuid


@dataclass(frozen=True)
class _Listed:
    gpus: tuple[Gpu, ...]
    problem: str = ""


def all_gpus() -> tuple[Gpu, ...]:
    """Every GPU of this machine; in place of a GPU in MIG mode its instances. None without a driver."""
    return _listed(int(time.monotonic() / _SECONDS)).gpus


def driver_problem() -> str:
    """Why the driver does not answer, with the cure, or "". A machine without NVIDIA's driver has no problem."""
    return _listed(int(time.monotonic() / _SECONDS)).problem


@contextmanager
def nvml() -> Iterator[None]:
    """NVML, initialized. Raises NVMLError if there is no driver, or it does not answer."""
    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


@lru_cache(maxsize=1)
def _listed(_period: int) -> _Listed:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return _Listed((), "" if error.value in _NONE else f"NVIDIA's driver does not answer: {_reason(error)}")
    try:
        return _Listed(tuple(gpu for index in range(pynvml.nvmlDeviceGetCount()) for gpu in _gpus(index)))
    except pynvml.NVMLError as error:
        return _Listed((), f"NVIDIA's driver does not count its GPUs: {_reason(error)}")
    finally:
        pynvml.nvmlShutdown()


def used_by_others(gpu: Gpu) -> str:
    """What uses a GPU that nothing of Lathe has leased, as a sentence; "" while less than a fifth of its memory is in use.

    That is a process of somebody else, or a run that was killed and whose memory the driver has not freed yet.
    """
    with suppress(pynvml.NVMLError), nvml():
        handle = handle_of(gpu)
        used = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
        if used >= _BUSY_SHARE * gpu.memory_bytes:
            users = ", ".join(map(_process, _process_ids(handle))) or "processes that this user cannot see"
            return f"{byte_size(used)} of its memory are in use by {users}."
    return ""


def handle_of(gpu: Gpu) -> Any:
    """NVML's handle; NVML must be initialized. Raises NVMLError if the GPU does not answer."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(gpu.index)
    return handle if gpu.instance is None else pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, gpu.instance)


def _process_ids(handle: Any) -> list[int]:
    try:
        return [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    except pynvml.NVMLError:
        return []


def _process(pid: int) -> str:
    """A process by its name, id and user, as far as they can be read; in a container NVML's ids mean nothing."""
    import psutil

    try:
        process = psutil.Process(pid)
        return f"{process.name()} (process {pid} of {process.username()})"
    except psutil.Error:
        return f"process {pid}"


def _gpus(index: int) -> list[Gpu]:
    """The GPU of this index, or its instances."""
    values: dict[str, Any] = {"uuid": "", "name": "", "memory_bytes": 0, "capability": (0, 0)}
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        values["name"] = str(pynvml.nvmlDeviceGetName(handle))
        values["uuid"] = str(pynvml.nvmlDeviceGetUUID(handle))
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        values["capability"] = int(major), int(minor)
        if _in_mig_mode(handle):
            return _instances(index, handle, values)
        values["memory_bytes"] = _memory_bytes(handle)
    except pynvml.NVMLError as error:
        return [Gpu(index, **values, problem=_reason(error, index))]
    return [Gpu(index, **values)]


def _in_mig_mode(handle: Any) -> bool:
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        return False


def _instances(index: int, parent: Any, parent_values: dict[str, Any]) -> list[Gpu]:
    found = []
    for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(parent)):
        try:
            handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, number)
        except pynvml.NVMLError_NotFound:
            continue
        uuid, name = str(pynvml.nvmlDeviceGetUUID(handle)), str(pynvml.nvmlDeviceGetName(handle))
        values = parent_values | {"uuid": uuid, "name": name, "memory_bytes": _memory_bytes(handle)}
        found.append(Gpu(index, **values, instance=number))
    missing = f"is in MIG mode and has no instances. Create some (nvidia-smi mig -i {index} -cgi PROFILE -C)."
    return found or [Gpu(index, **parent_values, problem=missing)]


def _memory_bytes(handle: Any) -> int:
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    except pynvml.NVMLError_NotSupported:  # the GPU shares the host's memory
        import psutil

        return psutil.virtual_memory().total


def _reason(error: pynvml.NVMLError, index: int | None = None) -> str:
    """What NVML says, with the cure."""
    return f"{error}. {_CURES.get(error.value, 'Look into the kernel log (dmesg) for lines with NVRM.').format(index)}"
