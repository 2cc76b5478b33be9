"""Measures this machine: its devices by NVML, cores, memory, load, and the disk of the data folder."""

import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

import psutil
import pynvml

from worker.machine import devices, overload
from worker.machine.devices import CPU
from worker.machine.gpus import Gpu, handle_of, nvml, used_by_others
from worker.machine.process_identity import hostname, me
from worker.settings import get_settings
from worker.store.tables import Machine
from worker.store.tables.reports import Device

T = TypeVar("T")

PACKAGES = ("lathe-workbench", "torch", "transformers", "peft", "deepspeed", "accelerate")


def measure() -> Machine:
    """The machine as this worker sees it now. Loads are those since the previous call.

    Raises:
        SettingsError: LATHE_DEVICES names a GPU that does not exist.
    """
    settings, memory = get_settings(), psutil.virtual_memory()
    disk = shutil.disk_usage(settings.data_dir)
    return Machine(
        name=name(),
        host=hostname(),
        worker=str(me()),
        overload=overload.here(),
        versions=versions(),
        cores=devices.cores(),
        load=os.getloadavg()[0],
        memory_bytes=memory.total,
        memory_used_bytes=memory.total - memory.available,
        disk_bytes=disk.total,
        disk_free_bytes=disk.free,
        devices=[asdict(device) for device in measured_devices()],
    )


def name() -> str:
    """The machine's name in the database: the host, with LATHE_DEVICES if set, since several workers can share a host."""
    chosen = get_settings().devices.replace(" ", "").lower()
    return (f"{hostname()} ({chosen})" if chosen else hostname())[:250]


def measured_devices() -> list[Device]:
    """The devices of this worker, also those that cannot be used."""
    gpus = devices.chosen_gpus()
    if not gpus:
        memory = psutil.virtual_memory()
        used, busy = memory.total - memory.available, psutil.cpu_percent() / 100
        return [Device(name, _processor(), memory.total, used, utilization=busy) for name in devices.own_devices()]
    try:
        with nvml():
            return [_measured(gpu) for gpu in gpus]
    except pynvml.NVMLError:  # the driver was unloaded or updated since the worker started
        return [_unmeasured(gpu) for gpu in gpus]


def versions() -> dict[str, str]:
    """The installed versions of Lathe and the training packages; those that are not installed are missing."""
    return {package: found for package in PACKAGES if (found := version_of(package))}


def _unmeasured(gpu: Gpu) -> Device:
    return Device(devices.lease_name(gpu), gpu.name, gpu.memory_bytes, problem=gpu.problem)


def _measured(gpu: Gpu) -> Device:
    try:
        handle = handle_of(gpu)
    except pynvml.NVMLError:  # it has fallen off the bus
        return _unmeasured(gpu)
    power, limit = (
        _answer(read, handle) for read in (pynvml.nvmlDeviceGetPowerUsage, pynvml.nvmlDeviceGetEnforcedPowerLimit)
    )
    return Device(
        devices.lease_name(gpu),
        gpu.name,
        gpu.memory_bytes,
        memory_used_bytes=_answer(lambda of: int(pynvml.nvmlDeviceGetMemoryInfo(of).used), handle),
        temperature_celsius=_answer(
            lambda of: int(pynvml.nvmlDeviceGetTemperature(of, pynvml.NVML_TEMPERATURE_GPU)), handle
        ),
        utilization=_answer(lambda of: pynvml.nvmlDeviceGetUtilizationRates(of).gpu / 100, handle),
        power_watts=None if power is None else power / 1000,
        power_limit_watts=None if limit is None else limit / 1000,
        problem=gpu.problem,
        others=used_by_others(gpu),
    )


def _answer(read: Callable[[object], T], handle: object) -> T | None:
    """NVML's answer; None if this GPU does not support the question."""
    try:
        return read(handle)
    except pynvml.NVMLError:
        return None


@cache
def version_of(package: str) -> str | None:
    """The installed version of a package; None without one."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def _processor() -> str:
    """The processor's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return CPU.upper()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, CPU.upper())
