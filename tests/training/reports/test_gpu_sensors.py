"""The sensors of a rank's GPU."""

import pytest
import torch

from training.reports.report import GpuSensors


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_without_a_gpu_there_are_no_values_and_no_error() -> None:
    assert GpuSensors().read() == {}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_gpu_reports_values_within_their_bounds() -> None:
    values = GpuSensors().read()
    assert values.keys() <= {"gpu_utilization", "gpu_temperature", "gpu_power"}
    assert 0 <= (values.get("gpu_utilization") or 0) <= 100
