"""Utilization, temperature and power of this rank's GPU, where NVML answers."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pynvml


class GpuSensors:
    """Reads the sensors of the current CUDA device. Without NVML, and for what a device does not measure, there are no values."""

    def __init__(self) -> None:
        self._handle: Any = None
        with suppress(pynvml.NVMLError, AttributeError, RuntimeError):
            self._handle = _handle()
        self._millijoules = self._counter()

    def read(self) -> dict[str, float | None]:
        """Returns gpu_utilization in percent, gpu_temperature in °C and gpu_power in watts."""
        values: dict[str, float | None] = {}
        if self._handle is None:
            return values
        sensors: dict[str, Callable[[Any], float]] = {
            "gpu_utilization": lambda handle: float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            "gpu_temperature": lambda handle: float(
                pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
            ),
            "gpu_power": lambda handle: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        }
        for name, sensor in sensors.items():
            with suppress(pynvml.NVMLError):
                values[name] = sensor(self._handle)
        return values

    def joules(self) -> float | None:
        """Returns the energy that the GPU took since this object was made, for all its processes; None if it does not count it."""
        now = self._counter()
        return None if now is None or self._millijoules is None else (now - self._millijoules) / 1000

    def _counter(self) -> int | None:
        """Returns NVML's energy counter in millijoules, which GPUs have since Volta."""
        if self._handle is None:
            return None
        with suppress(pynvml.NVMLError):
            return int(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        return None


def _handle() -> Any:
    """NVML's handle of the current CUDA device, which NVML numbers differently. None without CUDA."""
    import torch

    if not torch.cuda.is_available():
        return None
    uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
