"""What a worker measures of its devices. Test machines may have no GPU, so the tests replace NVML's answers."""

from types import SimpleNamespace

import pynvml
import pytest

from worker.machine import devices, measurement
from worker.machine.devices import Gpu
from worker.machine.process_identity import hostname
from worker.settings import get_settings

GIB = 2**30
TWO = tuple(Gpu(index, f"GPU-{index}abc", "NVIDIA H100", 80 * GIB, (9, 0)) for index in range(2))


def unsupported(*_: object) -> int:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


@pytest.fixture
def nvml(bare_home: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "all_gpus", lambda: TWO)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    answers = {
        "Init": lambda: None,
        "Shutdown": lambda: None,
        "DeviceGetHandleByIndex": lambda index: index,
        "DeviceGetMemoryInfo": lambda index: SimpleNamespace(used=(index + 1) * GIB),
        "DeviceGetTemperature": lambda index, sensor: 50 + index,
        "DeviceGetUtilizationRates": lambda index: SimpleNamespace(gpu=75),
        "DeviceGetPowerUsage": lambda index: 310_000,
        "DeviceGetEnforcedPowerLimit": lambda index: 700_000,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, f"nvml{name}", answer)


@pytest.mark.usefixtures("nvml")
def test_each_gpu_is_measured_under_its_lease_name() -> None:
    first, second = measurement.measured_devices()
    assert (first.name, second.name) == (f"{hostname()}/cuda:0", f"{hostname()}/cuda:1")
    assert (second.memory_bytes, second.memory_used_bytes, second.temperature_celsius) == (80 * GIB, 2 * GIB, 51)
    assert (second.utilization, second.power_watts, second.power_limit_watts) == (0.75, 310, 700)


@pytest.mark.usefixtures("nvml")
def test_what_a_gpu_does_not_support_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", unsupported)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTemperature", unsupported)
    first, _ = measurement.measured_devices()
    assert (first.power_watts, first.temperature_celsius, first.memory_used_bytes) == (None, None, GIB)


@pytest.mark.usefixtures("nvml")
@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetHandleByIndex"])
def test_gpus_are_listed_although_the_driver_does_not_answer(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    monkeypatch.setattr(pynvml, call, unsupported)
    assert [(one.memory_bytes, one.memory_used_bytes) for one in measurement.measured_devices()] == [
        (80 * GIB, None)
    ] * 2


@pytest.mark.usefixtures("nvml")
def test_workers_that_share_a_host_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measurement.name() == hostname()
    monkeypatch.setenv("LATHE_DEVICES", "0, 1")
    get_settings.cache_clear()
    assert measurement.name() == f"{hostname()} (0,1)"
